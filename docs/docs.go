// Package docs holds the documents that the service itself shows.
package docs

import _ "embed"

// Contract is the contract with clients, in Markdown.
//
//go:embed contract.md
var Contract []byte
