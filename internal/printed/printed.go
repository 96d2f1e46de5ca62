// Package printed keeps what documents quote from code current: a test fails when the two differ, and "make generate"
// rewrites the document. For tests only.
package printed

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// EnvRewrite makes Check write instead of compare.
const EnvRewrite = "PAYMENTSD_REWRITE_DOCS"

// Check requires that the document holds text between the lines "<!-- printed: name -->" and "<!-- end of name -->".
func Check(t testing.TB, file, name, text string) {
	t.Helper()
	content, err := os.ReadFile(file)
	require.NoError(t, err)
	begin, end := "<!-- printed: "+name+" -->\n", "<!-- end of "+name+" -->"
	before, rest, ok := strings.Cut(string(content), begin)
	require.True(t, ok, "%s has no line %q", file, begin)
	old, after, ok := strings.Cut(rest, end)
	require.True(t, ok, "%s has no line %q", file, end)
	if os.Getenv(EnvRewrite) != "" {
		require.NoError(t, os.WriteFile(file, []byte(before+begin+text+end+after), 0o644))
		return
	}
	require.Equal(t, text, old, "%s is not current: run make generate", file)
}
