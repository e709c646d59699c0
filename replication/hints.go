package replication

import (
	"fmt"

	"github.com/postrider/postrider/internal/operr"
)

// Hints of the start checks that the classification shares.
const (
	hintWALLevel    = "ALTER SYSTEM SET wal_level = 'logical' (or wal_level = logical in postgresql.conf), then restart PostgreSQL"
	hintSlotMissing = "postrider setup, which creates it; where it existed before, postrider recover, which also publishes from the table what is missing"
)

func errOldServer(version int) *operr.Error {
	return &operr.Error{
		Class: operr.Postgres, Op: "check server version",
		Err:  fmt.Errorf("server_version_num is %d, at least %d is needed", version, MinServerVersion),
		Hint: "upgrade to PostgreSQL 14 or newer",
	}
}
