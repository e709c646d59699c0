package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/internal/operr"
)

// Holder is the server process that streams a slot, with what the server says of its
// client. What the role may not see is empty.
type Holder struct {
	PID         int32      `json:"pid"`
	Application string     `json:"application_name"`
	User        string     `json:"user"`
	Client      string     `json:"client"`
	Since       *time.Time `json:"since"`
}

// String is for messages to people.
func (h Holder) String() string {
	s := fmt.Sprintf("pid %d", h.PID)
	if h.Application != "" {
		s += fmt.Sprintf(", application %q", h.Application)
	}
	if h.Client != "" {
		s += ", client " + h.Client
	}
	if h.Since != nil {
		s += ", since " + h.Since.UTC().Format(time.RFC3339)
	}
	return s
}

// A client without an address is on the server's own machine.
const holderSQL = `SELECT s.active_pid, coalesce(a.application_name, ''), coalesce(a.usename::text, ''),
	CASE WHEN a.client_addr IS NOT NULL THEN host(a.client_addr) || ':' || a.client_port WHEN a.client_port = -1 THEN 'local socket' ELSE '' END,
	a.backend_start
	FROM pg_replication_slots s LEFT JOIN pg_stat_activity a ON a.pid = s.active_pid
	WHERE s.slot_name = $1 AND s.active_pid IS NOT NULL`

// ReadHolder says who holds a slot; nil where nobody does, or where there is no such slot.
func ReadHolder(ctx context.Context, conn *pgx.Conn, slot string) (*Holder, error) {
	return readHolder(ctx, conn, slot)
}

func readHolder(ctx context.Context, q querier, slot string) (*Holder, error) {
	var h Holder
	err := q.QueryRow(ctx, holderSQL, slot).Scan(&h.PID, &h.Application, &h.User, &h.Client, &h.Since)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, storeError("find the holder of", "slot "+pgx.Identifier{slot}.Sanitize(), err)
	}
	return &h, nil
}

// HeldError refuses to change what belongs to whoever holds the slot. op is what was to
// be done: "advance".
func HeldError(op, slot string, holder Holder) error {
	return &operr.Error{
		Class: operr.Slot, Op: op, Subject: "slot " + pgx.Identifier{slot}.Sanitize(),
		Err:  fmt.Errorf("it is held by %s", holder),
		Hint: "stop that relay, then do it again",
	}
}

// lockPatience lets a session end whose command has ended already; lockPoll is how often
// it is looked for.
const (
	lockPatience = 2 * time.Second
	lockPoll     = 50 * time.Millisecond
)

// LockPublisher takes the lock that all commands which publish for a publisher or move
// its position share, for the life of the session. It hardly waits: the error, of class
// Slot, names who has it.
func LockPublisher(ctx context.Context, conn *pgx.Conn, publisher string) error {
	subject := fmt.Sprintf("publisher %q", publisher)
	patience := time.NewTimer(lockPatience)
	defer patience.Stop()
	tick := time.NewTicker(lockPoll)
	defer tick.Stop()
	for {
		var locked bool
		err := conn.QueryRow(ctx, `SELECT pg_try_advisory_lock(hashtextextended('postrider ' || $1, 0))`, publisher).Scan(&locked)
		if err != nil || locked {
			return storeErrorOrNil("lock", subject, err)
		}
		select {
		case <-tick.C:
		case <-patience.C:
			return lockedBy(ctx, conn, publisher, subject)
		}
	}
}

// lockHoldersSQL names who has the lock; NULL where nobody has.
const lockHoldersSQL = `SELECT string_agg(format('pid %s, application %s', l.pid, coalesce(a.application_name, 'unknown')), '; ')
		FROM pg_locks l LEFT JOIN pg_stat_activity a USING (pid), hashtextextended('postrider ' || $1, 0) AS key
		WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
		  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
		  AND (l.classid::bigint << 32 | l.objid::bigint) = key`

func lockedBy(ctx context.Context, conn *pgx.Conn, publisher, subject string) error {
	var other *string
	if err := conn.QueryRow(ctx, lockHoldersSQL, publisher).Scan(&other); err != nil {
		return storeError("lock", subject, err)
	}
	if other == nil {
		return errLocked("lock", subject, "a session that has just ended")
	}
	return errLocked("lock", subject, *other)
}

// nobodyWorks says who has the lock of LockPublisher.
func nobodyWorks(ctx context.Context, conn *pgx.Conn, publisher string) error {
	var other *string
	subject := fmt.Sprintf("publisher %q", publisher)
	if err := conn.QueryRow(ctx, lockHoldersSQL, publisher).Scan(&other); err != nil || other == nil {
		return storeErrorOrNil("look for other commands of", subject, err)
	}
	return errLocked("start", subject, *other)
}

func errLocked(op, subject, other string) error {
	return &operr.Error{
		Class: operr.Slot, Op: op, Subject: subject, Transient: true,
		Err:  fmt.Errorf("another command works on it: %s", other),
		Hint: "wait for it to end, or end it",
	}
}
