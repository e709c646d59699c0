// Package reconcile compares an outbox table with the topics, by event id: what the table
// has and no topic, what a topic has twice, otherwise, in another order, or alone.
//
// # What is due
//
// A row is missing only if its event had to be there. The checkpoint's ticked-off snapshot
// says so (rule 4): what it covers is published or parked. It is read first, then the ends
// of the topics, then the table; so every row that it covers has its record before the
// ends. Rows that it does not cover, and that no topic has, are not due yet.
//
// # Which rows
//
// Those of a window of time, and those that were not visible when an earlier run looked: a
// row that commits late is older than rows that were compared long before it (trap 28). Each
// run leaves its snapshot in the audit for that.
//
// A record's time is not that of its publication, so that the place where a window begins in
// a topic is a guess. What is not found behind it is looked for before it.
//
// # What it takes
//
// Rows are kept as hashes, some 220 bytes each with the event id; records are not kept. A window
// of more rows than Options.MostRows is compared in several passes over table and topics,
// each with the keys of a part: the order inside a key is seen in one of them.
package reconcile
