package events

import (
	"embed"
	"io/fs"
)

//go:embed schema/*.json
var files embed.FS

// Schemas are the JSON schemas (2020-12) of the language: envelope.v1.json for the whole message, payment.v1.json and
// account.v1.json for its data.
var Schemas = func() fs.FS {
	schemas, err := fs.Sub(files, "schema")
	if err != nil {
		panic(err) // a malformed name: found by the first test that runs
	}
	return schemas
}()
