// Package oracle judges a run of Postrider from outside: what was committed,
// read through a second slot and another decoder, against what a consumer finds.
// The end-to-end tests and the demo share it.
//
// It checks five things:
//
//   - O1 nothing lost: every committed event is in its topic at least once, or
//     in the parked store exactly once.
//   - O2 order: for each key, the first occurrences in the partition follow
//     commit order and the order of rows inside a transaction. A rewind after a
//     restart (1,2,3,2,3,4) is legal, a leapfrog (1,3,2) is not.
//   - O3 no phantom: nothing is in a topic that was not committed.
//   - O4 safe acknowledgement: the slot's confirmed_flush_lsn never passed the
//     commit LSN of a transaction that was not yet wholly in Kafka (or parked).
//   - O5 exact bytes: key, value and headers are what was committed, byte for
//     byte, null and empty told apart; every copy of an event, not only the first.
//
// Events may be reported in any order and from several goroutines. An event
// costs some 300 bytes, whatever its size: bytes are compared by SHA-256.
package oracle
