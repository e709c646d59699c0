// Package shadow compares what Postrider would publish with what another publisher of the same outbox (a polling relay, a
// Debezium connector) puts on the topics. It publishes nothing, and leaves nothing on the server: its slot is a temporary
// one that begins when the comparison does.
//
// Each event that comes on the stream is routed, and waits until a record with its id is found; records are read from where
// the topics end at the beginning. Both sides are looked at in turn, a few times a second: first where the topics end, then the stream to
// its end, then the topics up to there, so that a record is hardly ever there before its event. Either side is given up only
// when the other one is read that far. Memory is bounded: while much waits, that side is not read on.
package shadow
