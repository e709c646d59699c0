// Package rig is the bench that contenders run on: real PostgreSQL, real Kafka, processes and what they cost.
package rig

// Rig is the servers of a run.
type Rig struct {
	root, dir string
	dsn       string
}

// Root is the folder of Postrider's source.
func (r *Rig) Root() string { return r.root }

// BinDir is where built programs go; it is kept between runs.
func (r *Rig) BinDir() string { return r.dir + "/bin" }

// DSN connects to the database with the outbox tables, as a superuser that needs no password, without TLS.
func (r *Rig) DSN() string { return r.dsn }
