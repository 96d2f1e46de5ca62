package devpg

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// majorMin is the oldest PostgreSQL that the project is tested with (Debian 12's).
const majorMin = 15

// programs is one installation.
type programs struct {
	dir     string // holds initdb and postgres
	major   int
	version string
}

// places says where installations are looked for and how a missing one is had.
type places struct {
	path    string   // as $PATH
	globs   []string // directories beside it
	apt     string   // the apt-get to install with; empty: none
	fetch   bool
	fetchAt string // repository to fetch from; empty: the library's own
	fetchTo string // directory to fetch to; empty: see fetchedRoot
}

func (p places) isZero() bool {
	return p.path == "" && p.globs == nil && p.apt == "" && !p.fetch
}

func usualPlaces() places {
	p := places{
		path: os.Getenv("PATH"),
		globs: []string{
			"/usr/lib/postgresql/*/bin", // Debian keeps the server's programs off the PATH
			"/usr/pgsql-*/bin",          // so does PostgreSQL's own repository for Fedora and its kin
			"/usr/libexec/postgresql*",  // and Alpine
			"/opt/homebrew/opt/postgresql@*/bin",
			"/usr/local/opt/postgresql@*/bin",
		},
		fetch: true,
	}
	if apt, err := exec.LookPath("apt-get"); err == nil && os.Geteuid() == 0 {
		p.apt = apt
	}
	return p
}

// findPrograms returns an installation that can run the cluster: of its major version, or for a new cluster (major 0) the
// newest. What is missing is installed or fetched.
func findPrograms(ctx context.Context, cfg Config, files layout, major int) (programs, error) {
	found := installed(ctx, append(cfg.places.dirs(), fetchedDir(cfg, files)))
	if p, ok := choose(found, major); ok {
		return p, nil
	}
	if major != 0 && len(found) > 0 && major != fetchedMajor {
		return programs{}, otherVersion(files, major, found)
	}
	got, reasons := obtain(ctx, cfg, files)
	if p, ok := choose(got, major); ok {
		return p, nil
	}
	if major != 0 && len(got) > 0 {
		return programs{}, otherVersion(files, major, got)
	}
	return programs{}, fmt.Errorf("%w: looked in PATH and in %s%s; install PostgreSQL %d or newer (Debian: apt-get install postgresql, Homebrew: brew install postgresql@17), or set DATABASE_URL",
		ErrNoPrograms, strings.Join(cfg.places.globs, ", "), reasons, majorMin)
}

func otherVersion(files layout, major int, found []programs) error {
	var have []string
	for _, p := range found {
		have = append(have, p.version)
	}
	return fmt.Errorf("%w: %s needs PostgreSQL %d and this machine has %s; install PostgreSQL %d, or move that directory away to start with an empty database",
		ErrOtherVersion, files.cluster, major, strings.Join(have, ", "), major)
}

// dirs lists candidate directories, PATH first.
func (p places) dirs() []string {
	var dirs []string
	for _, d := range filepath.SplitList(p.path) {
		if filepath.IsAbs(d) { // a relative entry would mean another directory for the child
			dirs = append(dirs, d)
		}
	}
	for _, g := range p.globs {
		matches, _ := filepath.Glob(g) //nolint:errcheck // fails for a malformed pattern only
		dirs = append(dirs, matches...)
	}
	return dirs
}

// installed asks every candidate for its version. Links are followed because PostgreSQL finds its other files from where
// the program really is.
func installed(ctx context.Context, dirs []string) []programs {
	var found []programs
	for _, dir := range dirs {
		postgres, err := filepath.EvalSymlinks(filepath.Join(dir, "postgres"))
		if err != nil {
			continue
		}
		real := filepath.Dir(postgres)
		if _, err := os.Stat(filepath.Join(real, "initdb")); err != nil {
			continue
		}
		if slices.ContainsFunc(found, func(p programs) bool { return p.dir == real }) {
			continue
		}
		out, err := exec.CommandContext(ctx, postgres, "--version").Output()
		if err != nil {
			continue
		}
		if major, version, ok := parseVersion(string(out)); ok && major >= majorMin {
			found = append(found, programs{dir: real, major: major, version: version})
		}
	}
	return found
}

// parseVersion reads "postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)".
func parseVersion(out string) (major int, version string, ok bool) {
	_, rest, ok := strings.Cut(out, "(PostgreSQL) ")
	if !ok {
		return 0, "", false
	}
	version, _, _ = strings.Cut(strings.TrimSpace(rest), " ")
	digits := version
	if i := strings.IndexFunc(version, func(r rune) bool { return r < '0' || r > '9' }); i >= 0 {
		digits = version[:i] // 15.18, 17beta1
	}
	major, err := strconv.Atoi(digits)
	return major, version, err == nil
}

// choose prefers the newest; among equals the first found, so PATH wins.
func choose(found []programs, major int) (programs, bool) {
	var best programs
	for _, p := range found {
		if major != 0 && p.major != major {
			continue
		}
		if p.major > best.major {
			best = p
		}
	}
	return best, best.major != 0
}
