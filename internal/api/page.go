package api

import (
	"bytes"
	"fmt"
	"html/template"
	"net/http"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"

	"github.com/paymentsd/paymentsd/docs"
)

// page is the contract for people, as it is served at /docs. It needs no script and nothing from elsewhere.
var page = template.Must(template.New("docs").Parse(`<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>paymentsd: the contract</title>
<style>
  body { font: 16px/1.55 system-ui, sans-serif; color: #1c2330; background: #fff; max-width: 60rem; margin: 2rem auto 6rem; padding: 0 1.25rem }
  h1 { font-size: 1.9rem; margin-bottom: .2rem } h2 { margin-top: 2.6rem; border-bottom: 1px solid #dde2ea; padding-bottom: .25rem } h3 { margin-top: 1.8rem }
  code { font: .88em ui-monospace, monospace; background: #f2f4f8; padding: .1em .3em; border-radius: 3px }
  a { color: #0b5cad }
  table { border-collapse: collapse; font-size: .88rem; display: block; overflow-x: auto } th, td { border: 1px solid #dde2ea; padding: .35rem .6rem; text-align: left; vertical-align: top }
  th { background: #f2f4f8 } tr:nth-child(even) td { background: #fafbfd }
  nav { color: #5a6475 }
  @media (prefers-color-scheme: dark) {
    body { color: #d9dee8; background: #14181f } h2, th, td { border-color: #313947 } code, th { background: #202733 } tr:nth-child(even) td { background: #181d26 }
    a { color: #7db8f0 } nav { color: #98a3b5 }
  }
</style>
<nav>paymentsd · <a href="/openapi.yaml">openapi.yaml</a></nav>
{{.}}
</html>
`))

// docsPage renders the page once. The document is our own, so it is known to be good HTML.
func docsPage() ([]byte, error) {
	markdown := goldmark.New(goldmark.WithExtensions(extension.Table), goldmark.WithParserOptions(parser.WithAutoHeadingID()))
	var body, whole bytes.Buffer
	if err := markdown.Convert(docs.Contract, &body); err != nil {
		return nil, fmt.Errorf("render contract: %w", err)
	}
	if err := page.Execute(&whole, template.HTML(body.String())); err != nil {
		return nil, fmt.Errorf("render contract: %w", err)
	}
	return whole.Bytes(), nil
}

// getDocs is GET /docs.
func (s *server) getDocs() http.HandlerFunc {
	content, err := docsPage()
	return func(w http.ResponseWriter, r *http.Request) {
		if err != nil {
			s.fail(w, r, err)
			return
		}
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
		_, _ = w.Write(content)
	}
}
