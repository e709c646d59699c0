package devstack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"
)

// fetchedVersions are the ones that the library knows by heart; others are
// asked for by their full name.
var fetchedVersions = map[string]embeddedpostgres.PostgresVersion{
	"14": embeddedpostgres.V14,
	"15": embeddedpostgres.V15,
	"16": embeddedpostgres.V16,
	"17": embeddedpostgres.V17,
	"18": embeddedpostgres.V18,
}

// defaultFetched is what a machine without PostgreSQL gets.
const defaultFetched = "18"

// fetchPostgres downloads and unpacks binaries into the cache, once for each
// version and user.
func fetchPostgres(ctx context.Context, version string) (postgresBinaries, error) {
	full := fetchName(version)
	dir, err := cached("postgresql-"+string(full), func(dir string) error { return unpackPostgres(full, dir) })
	if err != nil {
		return postgresBinaries{}, err
	}
	bin := filepath.Join(dir, "pgsql", "bin")
	got, err := postgresVersion(ctx, bin)
	if err != nil {
		return postgresBinaries{}, err
	}
	return postgresBinaries{dir: bin, version: got, source: "embedded-postgres " + string(full)}, nil
}

// fetchName completes a version as the archives are named: "17" by the library's
// own table, "16.9" to "16.9.0".
func fetchName(version string) embeddedpostgres.PostgresVersion {
	if version == "" {
		version = defaultFetched
	}
	if full, ok := fetchedVersions[version]; ok {
		return full
	}
	if strings.Count(version, ".") == 1 {
		version += ".0"
	}
	return embeddedpostgres.PostgresVersion(version)
}

// startFailed begins the library's error for a server that does not start.
const startFailed = "could not start postgres"

// unpackPostgres lets the library fetch and unpack into dir/pgsql, and nothing
// more. The library has one entry, Start, which also runs initdb and the server
// as the current user; PostgreSQL refuses that for root, and we start it
// ourselves anyway (decision 0002). A data folder with nothing but PG_VERSION
// makes it go past initdb and fail at the start, for every user alike: that
// failure is the sign that the binaries are in place.
func unpackPostgres(version embeddedpostgres.PostgresVersion, dir string) error {
	scratch, err := os.MkdirTemp(dir, "scratch-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	data := filepath.Join(scratch, "data")
	if err := os.Mkdir(data, 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(data, "PG_VERSION"), []byte(major(string(version))+"\n"), 0o600); err != nil {
		return err
	}
	port, err := freePort()
	if err != nil {
		return err
	}
	err = embeddedpostgres.NewDatabase(embeddedpostgres.DefaultConfig().
		Version(version).
		Port(uint32(port)).
		CachePath(filepath.Join(scratch, "archive")). // a truncated archive must not stay
		RuntimePath(filepath.Join(scratch, "runtime")).
		DataPath(data).
		BinariesPath(filepath.Join(dir, "pgsql")).
		Logger(io.Discard)).Start()
	http.DefaultClient.CloseIdleConnections() // the library uses it; its connections are goroutines of ours
	switch {
	case err == nil:
		return errors.New("embedded-postgres started a server from an empty data folder")
	case !strings.HasPrefix(err.Error(), startFailed):
		return fmt.Errorf("fetch PostgreSQL %s: %w", version, err)
	}
	return nil
}
