// Package replay publishes events again that the relay has published already, from the
// table: same ids, keys, bytes and headers, with one header more that marks the copy.
//
// It works beside a running relay, and never touches slot or checkpoint. That keeps order
// promise 2, which is about first occurrences, by what it leaves out: a replay publishes
// copies only. Whatever the confirmed position does not prove to be published would be a
// first occurrence that overtakes the stream; so would a row from before the slot, which no
// stream has published; a parked event has its place behind others of its key.
package replay
