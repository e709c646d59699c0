// Package sizing measures what one relay makes of an operator's own PostgreSQL and
// brokers: `postrider bench`. It answers "how many events a second, at what cost,
// and what is in the way" before anybody has built on it.
//
//	Run ── check     reads only: the server, the role, the brokers
//	    ── Confirm   the caller sees the plan and may refuse
//	    ── workbench a database, publication, slot and topic of its own, removed at the end
//	    ── load      a procedure on the server writes the backlog
//	    ── peek      PostgreSQL decodes the backlog for nobody: the limit
//	    ── drain     the relay of `postrider run` publishes the backlog
//	    ── latency   paced writers, and a consumer that notes when their events arrive
//	    ── reader    reads all of it back, by another client than the one that publishes
//
// The pipeline is internal/relay as it is, with its checkpoint and all its checks. A
// database of its own keeps everything, the schema postrider too, away from what the
// operator has; a slot belongs to one database, and each decodes the whole server's
// WAL anyhow. The slot is no temporary one: such a slot belongs to one session, and
// the relay opens its own.
package sizing
