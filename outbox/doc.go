// Package outbox reads the outbox TABLE: for events that do not come on the stream,
// since they are from before the slot, or went missing, or are wanted again.
//
// A row that is read here becomes the message that the stream would have made of it,
// byte for byte: values come in PostgreSQL's own text under the settings that the
// stream pins (rule 10), described as pgoutput describes them, through the same router.
// Rows that the publication filters out are nobody's events here either.
//
// # Which rows
//
// No selection goes by an id or a time where a snapshot can decide: rows that commit
// late have older ids and times than rows that were seen long before them (trap 28).
// Selection.VisibleIn and Selection.NotCovered compare a row's 64-bit transaction id
// with a pg_snapshot (rule 4).
//
// A row is found under its event id. Rows that have none cannot be published; of rows that
// share one, the first is. Both are counted.
//
// # In which order
//
// The table does not hold the order of commits. What comes closest is named by
// Reader.Order and said by each command that publishes: see order.go.
//
// # Tasks
//
// What publishes from the table is a task: a row of postrider.task, with the exact list of
// its events in postrider.task_item, made by one statement. So it can be counted before
// it begins, and taken up after any end.
package outbox
