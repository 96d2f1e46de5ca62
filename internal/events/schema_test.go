package events_test

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/pb33f/jsonschema/v6"
	"github.com/stretchr/testify/require"

	"github.com/paymentsd/paymentsd/internal/events"
)

var schemaFiles = []string{"envelope.v1.json", "payment.v1.json", "account.v1.json"}

func compiled(t *testing.T) *jsonschema.Schema {
	compiler := jsonschema.NewCompiler()
	compiler.AssertFormat()
	for _, name := range schemaFiles {
		document := parsed(t, name)
		require.NoError(t, compiler.AddResource(document["$id"].(string), document))
	}
	schema, err := compiler.Compile("urn:paymentsd:event:v1")
	require.NoError(t, err)
	return schema
}

func parsed(t *testing.T, name string) map[string]any {
	content, err := fs.ReadFile(events.Schemas, name)
	require.NoError(t, err)
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(content))
	require.NoError(t, err)
	return document.(map[string]any)
}

func TestEveryGoldenFileIsOfTheSchema(t *testing.T) {
	schema := compiled(t)
	goldens, err := filepath.Glob("testdata/v1/*.json")
	require.NoError(t, err)
	require.Len(t, goldens, len(samples(t)))
	for _, name := range goldens {
		content, err := os.ReadFile(name)
		require.NoError(t, err)
		message, err := jsonschema.UnmarshalJSON(bytes.NewReader(content))
		require.NoError(t, err)
		require.NoError(t, schema.Validate(message), name)
		_, err = events.Read(content)
		require.NoError(t, err, name)
	}
}

// What the schema refuses, Read refuses too: neither is a promise that the other breaks.
func TestSchemaAndReadAgreeAboutOneMessage(t *testing.T) {
	schema := compiled(t)
	for name, change := range broken {
		message, err := jsonschema.UnmarshalJSON(strings.NewReader(strings.Replace(settled(t), change[0], change[1], 1)))
		if err != nil || schema.Validate(message) != nil {
			_, err := events.Read([]byte(strings.Replace(settled(t), change[0], change[1], 1)))
			require.Error(t, err, name)
		}
	}
}

// members lists what a schema says about its members, one a line: schema, member, type, whether it is always there.
func members(t *testing.T, name string) (lines []string) {
	document := parsed(t, name)
	var required []string
	for _, r := range document["required"].([]any) {
		required = append(required, r.(string))
	}
	for member, of := range document["properties"].(map[string]any) {
		presence := "optional"
		if slices.Contains(required, member) {
			presence = "required"
		}
		lines = append(lines, fmt.Sprintf("%s %s %s %s", name, member, of.(map[string]any)["type"], presence))
		values, _ := of.(map[string]any)["enum"].([]any)
		for _, value := range values {
			lines = append(lines, fmt.Sprintf("%s %s value %s", name, member, value))
		}
	}
	return lines
}

// The list in testdata is what version 1 has promised. Lines are added to it and never changed: a consumer that was written
// for it must be able to read every later event.
func TestChangesOnlyAdd(t *testing.T) {
	content, err := os.ReadFile("testdata/v1.members")
	require.NoError(t, err)
	recorded := strings.Split(strings.TrimSpace(string(content)), "\n")
	var current []string
	for _, name := range schemaFiles {
		current = append(current, members(t, name)...)
	}
	require.Subset(t, current, recorded, "a member, type or promise is gone: that is version 2")
	for _, line := range current {
		if !slices.Contains(recorded, line) {
			require.False(t, strings.HasSuffix(line, "required") && !strings.Contains(line, " value "),
				"%s: events that are already on their way do not have it, so it is optional", line)
			require.Fail(t, "not recorded yet", "add to testdata/v1.members: %s", line)
		}
	}
}

func TestSchemaAndCodeKnowTheSameMembers(t *testing.T) {
	for name, of := range map[string]any{"envelope.v1.json": events.Envelope{}, "payment.v1.json": events.Payment{}, "account.v1.json": events.Account{}} {
		var inCode, inSchema []string
		for _, field := range reflect.VisibleFields(reflect.TypeOf(of)) {
			member, options, _ := strings.Cut(field.Tag.Get("json"), ",")
			presence := "required"
			if options != "" {
				presence = "optional"
			}
			inCode = append(inCode, member+" "+presence)
		}
		for _, line := range members(t, name) {
			words := strings.Fields(line)
			if words[2] != "value" {
				inSchema = append(inSchema, words[1]+" "+words[3])
			}
		}
		require.ElementsMatch(t, inCode, inSchema, name)
	}
	var all struct {
		Properties struct {
			Type struct{ Enum []events.Type }
		}
	}
	content, err := fs.ReadFile(events.Schemas, "payment.v1.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(content, &all, json.MatchCaseInsensitiveNames(true)))
	require.ElementsMatch(t, paymentTypes, all.Properties.Type.Enum)
}
