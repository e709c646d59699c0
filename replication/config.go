package replication

import (
	"context"
	"time"

	"github.com/rs/zerolog"
)

// Defaults and bounds of Config.
const (
	defaultConnectTimeout = 10 * time.Second
	defaultTCPUserTimeout = 30 * time.Second
	defaultReadBuffer     = 256 << 10
	defaultMaxRowBytes    = 16 << 20
	// maxStatusInterval bounds what a restart after a crash of PostgreSQL or of
	// this process has to repeat, also where wal_sender_timeout is off.
	maxStatusInterval = 10 * time.Second
	// defaultSilence is after how long without a byte the owner of the slot is
	// asked for by SQL, where wal_sender_timeout is off.
	defaultSilence = 60 * time.Second
)

// Config is what a replication connection needs. ConnString, Slot and
// Publications are required.
type Config struct {
	// ConnString is a libpq DSN or URL without "replication"; the package adds
	// it and the pinned session parameters.
	ConnString string
	// Slot is the name of an existing pgoutput slot.
	Slot string
	// Publications are exact names, without SQL quotes.
	Publications []string
	// StatusInterval is the longest pause between two standby statuses. Zero is
	// a third of the server's wal_sender_timeout, at most 10 s. A value above
	// that third is lowered to it.
	StatusInterval time.Duration
	// WALSenderTimeout goes to the server as a start-up parameter; zero leaves
	// the server's own.
	WALSenderTimeout time.Duration
	// TCPUserTimeout bounds how long sent bytes may stay unacknowledged by the
	// peer's kernel. Zero is 30 s; negative leaves the system's default.
	TCPUserTimeout time.Duration
	// ConnectTimeout bounds dialling, TLS and authentication at one address, where
	// ConnString has no connect_timeout of its own. Zero is 10 s.
	ConnectTimeout time.Duration
	// ReadBuffer in bytes; zero is 256 KiB. A larger message gets a buffer of
	// its own that is given back after it.
	ReadBuffer int
	// MaxRowBytes bounds one message; zero is 16 MiB. An INSERT above it is
	// refused (see RowRefuser) without being read into memory.
	MaxRowBytes int
	// StillOurs tells by SQL whether the slot's active_pid is this connection's
	// BackendPID. It is asked when nothing has arrived for a wal_sender_timeout:
	// silence alone is not death (rule 8). Nil: silence is waited out.
	StillOurs func(ctx context.Context) (bool, error)
	// Log gets the server's notices; never payloads. Nil is silent.
	Log *zerolog.Logger
}

func (c Config) withDefaults() Config {
	if c.ConnectTimeout <= 0 {
		c.ConnectTimeout = defaultConnectTimeout
	}
	if c.TCPUserTimeout == 0 {
		c.TCPUserTimeout = defaultTCPUserTimeout
	}
	if c.ReadBuffer <= 0 {
		c.ReadBuffer = defaultReadBuffer
	}
	if c.MaxRowBytes <= 0 {
		c.MaxRowBytes = defaultMaxRowBytes
	}
	if c.Log == nil {
		silent := zerolog.Nop()
		c.Log = &silent
	}
	return c
}
