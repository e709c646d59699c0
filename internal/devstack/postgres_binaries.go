package devstack

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// minMajor is the oldest PostgreSQL that Postrider supports.
const minMajor = 14

// postgresBinaries is one installation.
type postgresBinaries struct {
	dir     string // holds initdb and postgres
	version string // "15.18"
	source  string // for people
}

// layouts are the folders in which distributions keep one version each.
var layouts = []string{
	"/usr/lib/postgresql/*/bin",          // Debian, Ubuntu
	"/usr/pgsql-*/bin",                   // the RPM packages
	"/opt/homebrew/opt/postgresql@*/bin", // Homebrew
	"/usr/local/opt/postgresql@*/bin",
}

// findPostgres gives the binaries for version: "" for the newest on the machine
// (else fetched), a major ("17": the machine's, else fetched), or an exact
// version ("16.9").
func findPostgres(ctx context.Context, version string) (postgresBinaries, error) {
	for _, b := range installedPostgres(ctx) {
		if version == "" || b.version == version || major(b.version) == version {
			return b, nil
		}
	}
	b, err := fetchPostgres(ctx, version)
	if err != nil {
		return b, fmt.Errorf("this machine has no PostgreSQL %s (initdb and postgres), and fetching it failed: %w",
			cmp.Or(version, "14 or newer"), err)
	}
	return b, nil
}

// installedPostgres lists complete installations, newest first.
func installedPostgres(ctx context.Context) []postgresBinaries {
	var dirs []string
	for _, pattern := range layouts {
		found, _ := filepath.Glob(pattern) // the patterns are constants and well-formed
		dirs = append(dirs, found...)
	}
	if path, err := exec.LookPath("initdb"); err == nil {
		if target, err := filepath.EvalSymlinks(path); err == nil {
			dirs = append(dirs, filepath.Dir(target))
		}
	}
	slices.Sort(dirs)
	var all []postgresBinaries
	for _, dir := range slices.Compact(dirs) {
		version, err := postgresVersion(ctx, dir)
		if err != nil || majorNumber(version) < minMajor {
			continue
		}
		all = append(all, postgresBinaries{dir: dir, version: version, source: dir})
	}
	slices.SortStableFunc(all, func(a, b postgresBinaries) int { return majorNumber(b.version) - majorNumber(a.version) })
	return all
}

var versionPattern = regexp.MustCompile(`\d+(\.\d+)?`)

// postgresVersion asks the server binary; a folder without initdb holds a
// client package only and does not count.
func postgresVersion(ctx context.Context, dir string) (string, error) {
	if _, err := os.Stat(filepath.Join(dir, "initdb")); err != nil {
		return "", err
	}
	out, err := exec.CommandContext(ctx, filepath.Join(dir, "postgres"), "--version").Output()
	if err != nil {
		return "", err
	}
	v := versionPattern.FindString(string(out))
	if v == "" {
		return "", errors.New("no version in " + strconv.Quote(string(out)))
	}
	return v, nil
}

func major(version string) string {
	m, _, _ := strings.Cut(version, ".")
	return m
}

func majorNumber(version string) int {
	n, _ := strconv.Atoi(major(version))
	return n
}
