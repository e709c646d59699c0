package replication

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/postrider/postrider/internal/operr"
)

// verdict is what an error means for whoever runs Postrider.
type verdict struct {
	class     operr.Class
	transient bool
	hint      string
	// also is joined into the chain, so that a caller can act on it.
	also error
}

// classify is the one place that decides what heals by itself and what needs
// somebody. It keeps an *operr.Error as it is; nil stays nil.
func classify(op, subject string, err error) error {
	if err == nil {
		return nil
	}
	if known := (*operr.Error)(nil); errors.As(err, &known) {
		return err
	}
	v := judge(err)
	if v.also != nil && !errors.Is(err, v.also) {
		err = fmt.Errorf("%w: %w", v.also, err)
	}
	return &operr.Error{Class: v.class, Op: op, Subject: subject, Hint: v.hint, Transient: v.transient, Err: err}
}

func judge(err error) verdict {
	var (
		pg       *pgconn.PgError
		protocol *ProtocolError
		busy     *SlotBusyError
		parse    *pgconn.ParseConfigError
	)
	switch {
	case errors.Is(err, context.Canceled):
		// Our own doing; whoever cancelled knows.
		return verdict{class: operr.Postgres}
	case errors.As(err, &parse):
		return verdict{class: operr.Config, hint: "correct postgres.host or postgres.dsn: a libpq URL or key=value string"}
	case errors.As(err, &protocol):
		// The same bytes come again on every attempt, and skipping them could lose an event.
		return verdict{class: operr.Postgres, hint: "report the message and the server's version; nothing was confirmed past it"}
	case errors.Is(err, ErrServerShutdown):
		// It comes back, or another server does.
		return verdict{class: operr.Postgres, transient: true}
	case errors.Is(err, ErrSlotTaken):
		// Another instance has taken over: stand by until it is free again.
		return verdict{class: operr.Slot, transient: true}
	case errors.Is(err, ErrPublicationLost):
		// Rows after the drop are not in the stream; going on would confirm past them.
		return verdict{class: operr.Postgres, hint: hintPublication}
	case errors.Is(err, ErrPooler):
		return verdict{class: operr.Postgres, hint: "connect to PostgreSQL itself: replication and the pinned session settings do not survive a pooler such as PgBouncer"}
	case errors.As(err, &busy):
		// The holder ends, or the server ends it after wal_sender_timeout.
		return verdict{class: operr.Slot, transient: true, hint: "wait for the holder to end, or end it; the slot is taken over then"}
	case errors.As(err, &pg):
		return judgePG(pg)
	default:
		return judgeNetwork(err)
	}
}

// Hints that several branches share.
const (
	hintPublication = "create the publication before the slot (postrider setup); where rows were written while it was missing, postrider recover --new-slot makes a new slot and publishes them from the table"
	hintLogin       = "check user, password and pg_hba.conf; logical replication matches the database's own name there, and the role needs REPLICATION"
	hintSlotLost    = "postrider recover, which makes the slot anew and publishes from the table what is missing"
)

// judgePG goes by SQLSTATE, whose meaning does not depend on the server's language.
func judgePG(pg *pgconn.PgError) verdict {
	if v, ok := judgeState(pg); ok {
		return v
	}
	switch pg.Code[:min(2, len(pg.Code))] {
	case "08", // connection exceptions
		"40", // rolled back by the server: deadlock, serialisation
		"53", // out of connections, memory or disk: ends with the shortage
		"57", // operator intervention
		"58": // I/O errors of the server's system
		return verdict{class: operr.Postgres, transient: true}
	default:
		// Syntax, privileges, data errors in the output plugin, corruption: the
		// same again on every attempt. Stopping with the server's words is better
		// than a loop that nobody reads.
		return verdict{class: operr.Postgres}
	}
}

// judgeState knows single SQLSTATEs.
func judgeState(pg *pgconn.PgError) (verdict, bool) {
	switch pg.Code {
	case "57P01", "57P03": // admin_shutdown, cannot_connect_now (starting, stopping, recovering)
		return verdict{class: operr.Postgres, transient: true, also: ErrServerShutdown}, true
	case "57014": // query_canceled: somebody, or a statement_timeout
		return verdict{class: operr.Postgres, transient: true}, true
	case "55006": // object_in_use
		return verdict{class: operr.Slot, transient: true, hint: "wait for the holder to end"}, true
	case "55000": // object_not_in_prerequisite_state
		return judgePrerequisite(pg), true
	case "42704": // undefined_object
		return judgeUndefined(pg), true
	case "58P01": // undefined_file: WAL that the slot needs was removed
		return verdict{class: operr.Slot, hint: hintSlotLost}, true
	case "28P01", "28000": // invalid password, invalid authorization
		return verdict{class: operr.Postgres, hint: hintLogin}, true
	case "42501": // insufficient_privilege
		return verdict{class: operr.Postgres, hint: "grant what is missing: ALTER ROLE … REPLICATION for the stream, or the privilege that the message names"}, true
	case "3D000": // invalid_catalog_name
		return verdict{class: operr.Postgres, hint: "correct postgres.database (or the one in postgres.dsn); a slot belongs to one database"}, true
	case "25006", "0A000": // read-only, or not supported in recovery: a standby, until it is promoted
		return verdict{class: operr.Postgres, transient: isStandby(pg), hint: "connect to the primary (target_session_attrs=read-write with several hosts)"}, true
	case "08P01": // protocol_violation: what PgBouncer says to parameters it does not know
		if strings.Contains(pg.Message, "startup parameter") {
			return verdict{class: operr.Postgres, also: ErrPooler, hint: "connect to PostgreSQL itself, not to a pooler"}, true
		}
		return verdict{class: operr.Postgres}, true
	case "55P03": // lock_not_available
		return verdict{class: operr.Postgres, transient: true, hint: "end the transactions that hold the lock, then run it again"}, true
	case "53400": // configuration_limit_exceeded: all replication slots are in use
		return verdict{class: operr.Postgres, hint: "raise max_replication_slots, or drop a slot that nobody uses"}, true
	}
	return verdict{}, false
}

// judgePrerequisite tells apart what 55000 stands for: an invalidated slot, a
// slot of another kind, wal_level. None heals.
func judgePrerequisite(pg *pgconn.PgError) verdict {
	text := pg.Message + " " + pg.Detail
	switch {
	case strings.Contains(text, "wal_level"):
		return verdict{class: operr.Postgres, hint: hintWALLevel}
	case strings.Contains(text, "invalidated") || strings.Contains(text, "can no longer get changes"):
		return verdict{class: operr.Slot, hint: hintSlotLost}
	default:
		return verdict{class: operr.Slot, hint: "compare the slot's plugin and database in pg_replication_slots with the configuration"}
	}
}

// judgeUndefined tells a missing publication from a missing slot and from a
// start-up parameter that the server does not know.
func judgeUndefined(pg *pgconn.PgError) verdict {
	switch {
	case strings.Contains(pg.Message, "configuration parameter"):
		return verdict{class: operr.Postgres, hint: "PostgreSQL 14 or newer is needed, without a pooler in front of it"}
	case strings.Contains(pg.Message, "replication slot"):
		return verdict{class: operr.Slot, hint: hintSlotMissing}
	default:
		return verdict{class: operr.Postgres, hint: hintPublication}
	}
}

func isStandby(pg *pgconn.PgError) bool {
	return pg.Code == "25006" || strings.Contains(pg.Message, "recovery") || strings.Contains(pg.Message, "standby")
}

// judgeNetwork is for what never reached a server, or was cut on the way.
func judgeNetwork(err error) verdict {
	var (
		netErr  net.Error
		op      *net.OpError
		dns     *net.DNSError
		cert    *tls.CertificateVerificationError
		unknown x509.UnknownAuthorityError
		host    x509.HostnameError
		connect *pgconn.ConnectError
	)
	switch {
	case errors.As(err, &cert), errors.As(err, &unknown), errors.As(err, &host):
		// Before the network branch: pgconn wraps it as a failed connection.
		return verdict{class: operr.Postgres, hint: "check sslmode, sslrootcert and the server's certificate"}
	case strings.Contains(err.Error(), "server refused TLS"):
		return verdict{class: operr.Postgres, hint: "turn ssl on in postgresql.conf, or choose another sslmode"}
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed), errors.Is(err, pgconn.ErrConnClosed),
		errors.Is(err, context.DeadlineExceeded), errors.As(err, &dns), errors.As(err, &op), errors.As(err, &netErr):
		// The network, a restart or a failover.
		return verdict{class: operr.Postgres, transient: true, hint: "check that PostgreSQL runs and that host, port or dsn under postgres are right"}
	case errors.As(err, &connect):
		// Refused by a client-side rule (sslmode, SCRAM, target_session_attrs); the
		// last of these changes with a failover, so that a retry is right.
		return verdict{class: operr.Postgres, transient: true}
	default:
		return verdict{class: operr.Internal}
	}
}

var activePID = regexp.MustCompile(`PID (\d+)`)

// asSlotBusy turns 55006 into the error that a standby waits on.
func asSlotBusy(slot string, err error) error {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || pg.Code != "55006" {
		return err
	}
	busy := &SlotBusyError{Slot: slot}
	if m := activePID.FindStringSubmatch(pg.Message); m != nil {
		pid, _ := strconv.ParseUint(m[1], 10, 32) // digits; an impossible pid stays 0
		busy.PID = uint32(pid)
	}
	return busy
}
