package replication

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/internal/operr"
)

// CheckConfig says what the start checks look at.
type CheckConfig struct {
	// Slot is checked where it is not empty.
	Slot string
	// Publications together must cover Tables.
	Publications []string
	Tables       []Table
}

// Check asks each precondition of streaming as a question of its own, and gives
// one error per problem, all of them. What cannot be asked is a problem too.
func Check(ctx context.Context, conn *pgx.Conn, cfg CheckConfig) []*operr.Error {
	return ask(ctx, conn, cfg, (*checker).server, (*checker).walLevel, (*checker).role, (*checker).publications, (*checker).slot)
}

// CheckServer asks: is it new enough, and is it a primary?
func CheckServer(ctx context.Context, conn *pgx.Conn) []*operr.Error {
	return ask(ctx, conn, CheckConfig{}, (*checker).server)
}

// CheckWALLevel asks: is wal_level=logical?
func CheckWALLevel(ctx context.Context, conn *pgx.Conn) []*operr.Error {
	return ask(ctx, conn, CheckConfig{}, (*checker).walLevel)
}

// CheckRole asks: may the session's role stream?
func CheckRole(ctx context.Context, conn *pgx.Conn) []*operr.Error {
	return ask(ctx, conn, CheckConfig{}, (*checker).role)
}

// CheckPublications asks: do they exist, and do they publish the inserts of each table?
func CheckPublications(ctx context.Context, conn *pgx.Conn, cfg CheckConfig) []*operr.Error {
	return ask(ctx, conn, cfg, (*checker).publications)
}

// ask puts questions one after the other.
func ask(ctx context.Context, conn *pgx.Conn, cfg CheckConfig, questions ...func(*checker)) []*operr.Error {
	c := checker{ctx: ctx, conn: conn, cfg: cfg}
	for _, question := range questions {
		question(&c)
	}
	return c.problems
}

type checker struct {
	ctx      context.Context
	conn     *pgx.Conn
	cfg      CheckConfig
	problems []*operr.Error
}

func (c *checker) add(class operr.Class, op, subject, hint string, err error) {
	c.problems = append(c.problems, &operr.Error{Class: class, Op: op, Subject: subject, Hint: hint, Err: err})
}

// failed records that a question could not be asked.
func (c *checker) failed(op, subject string, err error) {
	var e *operr.Error
	if errors.As(classify(op, subject, err), &e) {
		c.problems = append(c.problems, e)
	}
}

func (c *checker) server() {
	var version int
	var recovery bool
	err := c.conn.QueryRow(c.ctx, `SELECT current_setting('server_version_num')::int, pg_catalog.pg_is_in_recovery()`).Scan(&version, &recovery)
	if err != nil {
		c.failed("check server", "", err)
		return
	}
	if version < MinServerVersion {
		c.problems = append(c.problems, errOldServer(version))
	}
	if recovery {
		c.problems = append(c.problems, &operr.Error{
			Class: operr.Postgres, Op: "check server", Err: errors.New("it is a standby (in recovery)"),
			Hint:      "connect to the primary (target_session_attrs=read-write with several hosts)",
			Transient: true, // until it is promoted
		})
	}
}

func (c *checker) walLevel() {
	var level string
	if err := c.conn.QueryRow(c.ctx, `SELECT current_setting('wal_level')`).Scan(&level); err != nil {
		c.failed("check wal_level", "", err)
		return
	}
	if level != "logical" {
		c.add(operr.Postgres, "check wal_level", "", hintWALLevel, fmt.Errorf("wal_level is %s, logical is needed", level))
	}
}

// roleSQL accepts the membership by which Amazon RDS grants replication.
const roleSQL = `SELECT current_user, r.rolreplication OR r.rolsuper OR EXISTS (
         SELECT FROM pg_catalog.pg_roles g WHERE g.rolname = 'rds_replication' AND pg_catalog.pg_has_role(r.oid, g.oid, 'MEMBER'))
  FROM pg_catalog.pg_roles r WHERE r.rolname = current_user`

func (c *checker) role() {
	var name string
	var may bool
	if err := c.conn.QueryRow(c.ctx, roleSQL).Scan(&name, &may); err != nil {
		c.failed("check role", "", err)
		return
	}
	if !may {
		c.add(operr.Postgres, "check role", fmt.Sprintf("%q", name),
			fmt.Sprintf("as a superuser: ALTER ROLE %s REPLICATION", quoteIdent(name)), errors.New("it has no REPLICATION attribute"))
	}
}

func (c *checker) publications() {
	pubs, err := ReadPublications(c.ctx, c.conn, c.cfg.Publications)
	if err != nil {
		c.failed("check publications", "", err)
		return
	}
	for _, name := range c.cfg.Publications {
		p, ok := pubs.Find(name)
		switch subject := fmt.Sprintf("%q", name); {
		case !ok:
			c.add(operr.Postgres, "check publication", subject, hintPublication, errors.New("it does not exist in this database"))
		case !p.Insert:
			c.add(operr.Postgres, "check publication", subject,
				fmt.Sprintf("ALTER PUBLICATION %s SET (publish = 'insert')", quoteIdent(name)), errors.New("it does not publish inserts"))
		}
	}
	if len(pubs) == 0 {
		return // said already
	}
	for _, t := range c.cfg.Tables {
		c.table(pubs, t)
	}
}

// tableSQL asks for a table, partitioned or not.
const tableSQL = `SELECT c.relkind = 'p', c.relpersistence::text FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = $1 AND c.relname = $2 AND c.relkind IN ('r', 'p')`

func (c *checker) table(pubs Publications, t Table) {
	subject := t.String()
	var partitioned bool // either way: ReadPublications knows leaves from roots
	var persistence string
	err := c.conn.QueryRow(c.ctx, tableSQL, t.Schema, t.Name).Scan(&partitioned, &persistence)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		c.add(operr.Postgres, "check table", subject, "write schema and name exactly as the catalog has them, without SQL quotes",
			errors.New("it does not exist in this database"))
		return
	case err != nil:
		c.failed("check table", subject, err)
		return
	case persistence != "p":
		c.add(operr.Postgres, "check table", subject, fmt.Sprintf("ALTER TABLE %s SET LOGGED", t.sql()),
			errors.New("it is unlogged or temporary: its rows are not in the WAL"))
		return
	}
	for i := range pubs {
		covered, ok := pubs[i].Covers(t)
		switch {
		case !ok || !pubs[i].Insert:
			continue
		case pubs[i].AllTables && covered.ByLeaves:
			// With a list of tables the stream's handler sees a stranger for what it is.
			c.add(operr.Postgres, "check publication of table", subject,
				fmt.Sprintf("ALTER PUBLICATION %s SET (publish_via_partition_root = true)", quoteIdent(pubs[i].Name)),
				errors.New("all tables are published and its rows come under the names of its partitions: a partition that is detached or dropped before its rows are read could not be told from somebody else's table, and its events would be lost"))
		}
		return
	}
	c.add(operr.Postgres, "check publication of table", subject,
		fmt.Sprintf("ALTER PUBLICATION %s ADD TABLE %s; rows written before that are not in the stream", quoteIdent(pubs[0].Name), t.sql()),
		errors.New("no configured publication publishes its inserts"))
}

// slot asks: is it there, is it ours to use, can it still deliver?
func (c *checker) slot() {
	if c.cfg.Slot == "" {
		return
	}
	s, err := ReadSlot(c.ctx, c.conn, c.cfg.Slot)
	if err != nil {
		c.failed("check slot", fmt.Sprintf("%q", c.cfg.Slot), err)
		return
	}
	var database string
	if err := c.conn.QueryRow(c.ctx, "SELECT current_database()").Scan(&database); err != nil {
		c.failed("check slot", fmt.Sprintf("%q", c.cfg.Slot), err)
		return
	}
	if p := s.Problem(database); p != nil {
		c.problems = append(c.problems, p)
	}
}

// Problem says why the slot cannot be streamed from in the given database; nil
// where it can. That somebody else holds it is not a problem: it ends.
func (s SlotInfo) Problem(database string) *operr.Error {
	e := &operr.Error{Class: operr.Slot, Op: "check slot", Subject: fmt.Sprintf("%q", s.Name)}
	switch {
	case !s.Exists:
		e.Err, e.Hint = errors.New("it does not exist"), hintSlotMissing
	case !s.Logical:
		e.Err, e.Hint = errors.New("it is a physical slot"), "choose another name in postgres.slot"
	case s.Plugin != Plugin:
		e.Err = fmt.Errorf("its output plugin is %s, %s is needed", s.Plugin, Plugin)
		e.Hint = "choose another name in postgres.slot; or, if nobody uses that slot, postrider recover, which makes it anew"
	case s.Database != database:
		e.Err = fmt.Errorf("it belongs to database %q, the connection is to %q", s.Database, database)
		e.Hint = "connect to the slot's database, or choose another name in postgres.slot; where the data was moved here, postrider recover"
	case s.Lost():
		e.Err = fmt.Errorf("PostgreSQL has removed WAL that it needs (wal_status=lost%s; last confirmed LSN %s): events after that position may be missing",
			s.because(), s.ConfirmedFlush)
		e.Hint = hintSlotLost
	case s.TwoPhase:
		e.Err = errors.New("it was created with two_phase = true: prepared transactions would come before they are committed")
		e.Hint = "choose another name in postgres.slot; or, if nobody uses that slot, postrider recover, which makes it anew"
	case s.Temporary:
		e.Err, e.Hint = errors.New("it is temporary: it ends with the session that made it"), "choose another name in postgres.slot"
	default:
		return nil
	}
	return e
}

// Lost says that the slot was invalidated; it never comes back.
func (s SlotInfo) Lost() bool { return s.WALStatus == WALStatusLost || s.InvalidationReason != "" }

func (s SlotInfo) because() string {
	if s.InvalidationReason == "" {
		return ""
	}
	return ", invalidation_reason=" + s.InvalidationReason
}
