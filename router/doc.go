// Package router turns a row of an outbox table into the message that will be
// published, or into a typed refusal. It is pure: a row and a mapping go in, a
// message comes out. It does no I/O, starts no goroutine and knows neither
// PostgreSQL's wire nor Kafka's.
//
// The mapping is explicit: each field of the message names its column, and
// nothing is derived from a column's name. A mapping is compiled once for each
// description of a table ([Router.Bind]) and then applied to each row
// ([Router.Route]) without allocating.
//
// Payload bytes are PostgreSQL's own text, or the raw bytes of a bytea. No JSON
// is parsed or written on that path.
//
// A Router is for one goroutine.
package router
