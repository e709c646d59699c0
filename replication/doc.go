// Package replication owns everything that Postrider says to PostgreSQL about
// logical replication: the slot and the publication, the stream, the decoding
// of committed transactions, and the standby status that confirms them.
//
// # The path of a row
//
// Session.Start turns a replication connection into a Stream. Stream.Run reads
// the socket on one goroutine, decodes pgoutput (protocol 1, text format) in
// place and calls a Handler for each transaction, row and keepalive. A handler
// that blocks stops reading and nothing else: the standby status has a
// goroutine and a timer of its own, so that a full window never looks like a
// dead client (trap 6).
//
// # What is confirmed
//
// Only what Stream.Confirm was told, never anything that the stream saw by
// itself. The first status is clamped to the slot's own position, all three
// positions are always set (trap 4), and the position never falls.
//
// # Errors
//
// All errors are *operr.Error; classify.go alone decides whether one heals by
// itself (Transient) or needs an operator.
package replication
