package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const root = "../.."

// imports lists our packages and what each imports of ours.
func imports(t *testing.T) map[string][]string {
	list := exec.Command("go", "list", "-f", "{{.ImportPath}} {{join .Imports \" \"}}", "./...")
	list.Dir = root
	out, err := list.Output()
	require.NoError(t, err)
	edges := map[string][]string{}
	for line := range strings.Lines(string(out)) {
		words := strings.Fields(line)
		from := strings.TrimPrefix(words[0], Module)
		edges[from] = []string{}
		for _, to := range words[1:] {
			if ours, ok := strings.CutPrefix(to, Module); ok {
				edges[from] = append(edges[from], ours)
			}
		}
	}
	return edges
}

// isGenerated reports whether the package is the sqlc package of its parent.
func isGenerated(pkg string) bool {
	return strings.HasSuffix(pkg, "sql") && strings.Contains(pkg, "/internal/")
}

func TestArrowsHold(t *testing.T) {
	for from, tos := range imports(t) {
		if isGenerated(from) {
			require.Empty(t, tos, "generated code imports nothing of ours")
			continue
		}
		allowed, known := Arrows[from]
		require.True(t, known, "package %s has no line in the table: what is its one purpose?", from)
		for _, to := range tos {
			own := isGenerated(to) && strings.HasPrefix(to, from+"/internal/")
			require.True(t, own || slices.Contains(allowed, to), "%s must not import %s", from, to)
		}
	}
}

func TestTableNamesNoPackageThatIsGone(t *testing.T) {
	edges := imports(t)
	for from, tos := range Arrows {
		require.Contains(t, edges, from)
		for _, to := range tos {
			require.Contains(t, edges, to)
			require.Contains(t, edges[from], to, "%s is allowed to import %s and does not", from, to)
		}
	}
}

var (
	sqlComment = regexp.MustCompile(`--[^\n]*`)
	sqlWrite   = regexp.MustCompile(`(?i)\b(?:INSERT\s+INTO|UPDATE|DELETE\s+FROM)\s+([a-z_]+)`)
)

func TestTablesAreWrittenByTheirRoomsOnly(t *testing.T) {
	files, err := filepath.Glob(root + "/internal/*/*.sql")
	require.NoError(t, err)
	require.Len(t, files, len(Writers))
	for _, file := range files {
		content, err := os.ReadFile(file)
		require.NoError(t, err)
		name := strings.TrimPrefix(filepath.ToSlash(file), root+"/")
		var written []string
		for _, m := range sqlWrite.FindAllStringSubmatch(sqlComment.ReplaceAllString(string(content), ""), -1) {
			if m[1] != "of" { // FOR UPDATE OF, FOR UPDATE SKIP LOCKED: locks, not writes
				written = append(written, strings.ToLower(m[1]))
			}
		}
		written = slices.DeleteFunc(written, func(w string) bool { return w == "skip" || w == "set" || w == "of" })
		slices.Sort(written)
		require.ElementsMatch(t, Writers[name], slices.Compact(written), name)
	}
}

// goFiles calls visit for every Go file that people wrote.
func goFiles(t *testing.T, visit func(name string, fset *token.FileSet, file *ast.File)) {
	require.NoError(t, filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && name != root && strings.HasPrefix(d.Name(), ".") || d.IsDir() && isGenerated(filepath.ToSlash(name)) {
			return fs.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(name, ".go") {
			return nil
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, name, nil, parser.ParseComments)
		require.NoError(t, err)
		visit(filepath.ToSlash(strings.TrimPrefix(name, root+"/")), fset, file)
		return nil
	}))
}

func TestSizesKeepTheReader(t *testing.T) {
	goFiles(t, func(name string, fset *token.FileSet, file *ast.File) {
		lines := fset.Position(file.End()).Line
		require.LessOrEqual(t, lines, FileLinesMax, "%s: is it two rooms?", name)
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || strings.HasSuffix(name, "_test.go") {
				continue
			}
			long := fset.Position(f.End()).Line - fset.Position(f.Pos()).Line + 1
			require.LessOrEqual(t, long, FuncLinesMax, "%s: %s does not fit a screen", name, f.Name.Name)
		}
	})
}

func TestEveryPackageStatesItsPromise(t *testing.T) {
	stated := map[string]bool{}
	goFiles(t, func(name string, _ *token.FileSet, file *ast.File) {
		if strings.HasSuffix(name, "_test.go") {
			return
		}
		dir := path.Dir(name)
		stated[dir] = stated[dir] || file.Doc != nil
		require.NotContains(t, NamesRefused, file.Name.Name, name)
	})
	for dir, ok := range stated {
		require.True(t, ok, "%s has no package comment", dir)
	}
}

// Leases, expiry and ages are judged by the database's clock: the packages that decide by them do not read another one.
func TestOneClockJudges(t *testing.T) {
	goFiles(t, func(name string, _ *token.FileSet, file *ast.File) {
		if path.Dir(name) != "internal/idempotency" || strings.HasSuffix(name, "_test.go") {
			return
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok {
				pkg, isName := s.X.(*ast.Ident)
				require.False(t, isName && pkg.Name == "time" && (s.Sel.Name == "Now" || s.Sel.Name == "Since"), "%s reads the process's clock", name)
			}
			return true
		})
	})
}
