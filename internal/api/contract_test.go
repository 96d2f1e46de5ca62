package api

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/pb33f/libopenapi"
	validator "github.com/pb33f/libopenapi-validator"
	"github.com/pb33f/libopenapi-validator/config"
	"github.com/pb33f/libopenapi-validator/errors"
	v3 "github.com/pb33f/libopenapi/datamodel/high/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// contract is openapi.yaml as a program reads it. It is built once a process, because that takes longer than most tests.
var contract = sync.OnceValues(func() (*document, error) {
	doc, err := libopenapi.NewDocument(OpenAPI)
	if err != nil {
		return nil, err
	}
	model, err := doc.BuildV3Model()
	if err != nil {
		return nil, err
	}
	v, errs := validator.NewValidator(doc, config.WithFormatAssertions())
	if len(errs) > 0 {
		return nil, errs[0]
	}
	return &document{v, &model.Model}, nil
})

type document struct {
	validator.Validator
	model *v3.Document
}

// operation finds what the document says about a request; nil when it says nothing.
func (d *document) operation(r *http.Request) *v3.Operation {
	asked := strings.Split(r.URL.Path, "/")
	for path, item := range d.model.Paths.PathItems.FromOldest() {
		template := strings.Split(path, "/")
		if slices.EqualFunc(asked, template, func(a, t string) bool { return a == t || strings.HasPrefix(t, "{") && a != "" }) {
			return item.GetOperations().GetOrZero(strings.ToLower(r.Method))
		}
	}
	return nil
}

// undeclared are headers that belong to HTTP and not to this contract.
var undeclared = []string{"Content-Type", "Content-Length", "Date", "Connection"}

// checkContract holds an answer against the document: status, content type, body, the headers that must be there, and that
// there are no others. What was accepted must be something that the document allows to ask.
func checkContract(t *testing.T, r *http.Request, sent string, a answer) {
	t.Helper()
	doc, err := contract()
	require.NoError(t, err)
	op := doc.operation(r)
	if op == nil {
		checkOutside(t, r, a)
		return
	}
	documented := op.Responses.Codes.GetOrZero(strconv.Itoa(a.status))
	require.NotNil(t, documented, "%s %s answered %d, which is not in the contract: %s", r.Method, r.URL.Path, a.status, a.body)
	for name := range a.header {
		declared := slices.Contains(undeclared, name)
		if documented.Headers != nil {
			for h := range documented.Headers.KeysFromOldest() {
				declared = declared || http.CanonicalHeaderKey(h) == name
			}
		}
		assert.True(t, declared, "%s %s answered %d with the header %s, which is not in the contract", r.Method, r.URL.Path, a.status, name)
	}
	if r.Method == http.MethodHead {
		require.Empty(t, a.body)
	}
	if strings.Contains(a.header.Get("Preference-Applied"), "return=minimal") {
		require.Empty(t, a.body)
		return
	}
	response := &http.Response{StatusCode: a.status, Header: a.header, Body: io.NopCloser(bytes.NewReader(a.body)), Request: r}
	_, broken := doc.ValidateHttpResponse(r, response)
	requireNone(t, broken, "answer %d %s", a.status, a.body)

	if a.status < 300 || a.status == http.StatusPaymentRequired {
		asked := r.Clone(context.WithoutCancel(t.Context()))
		asked.Body = io.NopCloser(strings.NewReader(sent))
		for _, values := range asked.Header {
			for i, v := range values {
				values[i] = strings.Trim(v, " \t") // as any HTTP server takes it
			}
		}
		_, broken := doc.ValidateHttpRequestSync(asked)
		requireNone(t, broken, "accepted request %v %s", asked.Header, sent)
	}
}

// checkOutside: what the document does not know is answered by one of two problems.
func checkOutside(t *testing.T, r *http.Request, a answer) {
	t.Helper()
	require.Contains(t, []int{http.StatusNotFound, http.StatusMethodNotAllowed}, a.status, "%s %s is not in the contract: %s", r.Method, r.URL.Path, a.body)
	require.Equal(t, problemContentType, a.header.Get("Content-Type"))
	if r.Method != http.MethodHead {
		require.Equal(t, a.status, a.problem(t).Status)
	}
}

func requireNone(t *testing.T, broken []*errors.ValidationError, format string, args ...any) {
	t.Helper()
	for _, e := range broken {
		t.Logf("contract broken: %s: %s", e.Message, e.Reason)
		for _, s := range e.SchemaValidationErrors {
			t.Logf("  at %v: %s", s.InstancePath, s.Reason)
		}
	}
	require.Empty(t, broken, append([]any{format}, args...)...)
}

func TestContractIsValidOpenAPI(t *testing.T) {
	doc, err := contract()
	require.NoError(t, err)
	_, broken := doc.ValidateDocument()
	requireNone(t, broken, "openapi.yaml")
}

// A code is in the table exactly when it is in the document, and what the table makes of it is an answer of some operation.
func TestErrorTableAndContractAgree(t *testing.T) {
	documented := codesOf(t, "errorCode")
	for _, r := range rules {
		if r.code == "NOT_FOUND" || r.code == "METHOD_NOT_ALLOWED" {
			continue // outside of every path of the document
		}
		require.Contains(t, documented, r.code)
		require.True(t, slices.ContainsFunc(answering, func(op string) bool { return isAnswer(t, op, r) }), "no operation answers %s as the table has it", r.code)
	}
	for _, code := range documented {
		require.True(t, slices.ContainsFunc(rules, func(r rule) bool { return r.code == code }), "%s is in the contract, and nothing answers it", code)
	}
}

// answering are the operations that errors are tried on.
var answering = []string{"POST /payments", "POST /payments/x/refunds", "GET /payments/x", "GET /idempotency-keys/x/x", "GET /accounts/x", "POST /provider/webhooks"}

// isAnswer reports whether the document has what the table makes of the error among the answers of the operation.
func isAnswer(t *testing.T, operation string, r rule) bool {
	t.Helper()
	doc, err := contract()
	require.NoError(t, err)
	p := problem(r.status, r.code, r.message)
	p.Retryable, p.SafeNewKey = r.retryable, r.safeNewKey
	switch r.code {
	case "VALIDATION_FAILED":
		p.Errors = []FieldProblem{{"amount", "REQUIRED", "is required"}}
	case "IDEMPOTENCY_REQUEST_IN_PROGRESS", "PROVIDER_UNAVAILABLE":
		p.PaymentID, p.OperationState = noPayment, "PENDING"
	case "DUPLICATE_MERCHANT_REFERENCE", "IDEMPOTENCY_KEY_EXPIRED":
		p.PaymentID = noPayment
	}
	method, path, _ := strings.Cut(operation, " ")
	request, err := http.NewRequest(method, "http://localhost"+path, nil)
	require.NoError(t, err)
	header := http.Header{"Content-Type": {problemContentType}}
	if r.retryAfter {
		header.Set("Retry-After", "1")
	}
	if r.status == http.StatusUnauthorized {
		header.Set("WWW-Authenticate", challengeOf(p))
	}
	ok, _ := doc.ValidateHttpResponse(request, &http.Response{StatusCode: r.status, Header: header, Body: io.NopCloser(bytes.NewReader(p.encode()))})
	return ok
}

// codesOf collects the values that the schemas of the document allow for a member.
func codesOf(t *testing.T, member string) (codes []string) {
	t.Helper()
	var tree any
	require.NoError(t, yaml.Unmarshal(OpenAPI, &tree))
	var walk func(any)
	walk = func(node any) {
		switch n := node.(type) {
		case []any:
			for _, v := range n {
				walk(v)
			}
		case map[string]any:
			if schema, ok := n[member].(map[string]any); ok {
				if c, ok := schema["const"].(string); ok {
					codes = append(codes, c)
				}
				values, _ := schema["enum"].([]any)
				for _, v := range values {
					codes = append(codes, v.(string))
				}
			}
			for _, v := range n {
				walk(v)
			}
		}
	}
	walk(tree)
	slices.Sort(codes)
	return slices.Compact(codes)
}
