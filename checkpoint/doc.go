// Package checkpoint decides what may be confirmed, and keeps it.
//
//   - Ledger holds the transactions that have been received and says up to where
//     everything is resolved. It is pure: no I/O, no clock.
//   - Gate is what a stream's handler asks about each re-streamed transaction after
//     a reconnect, so that nothing is routed twice and nothing is passed over.
//   - Row is the durable position, Store writes it under the fence of rule 5, and
//     Row.Next and Row.MayConfirm are the idle latch of rule 3.
//   - Decide says where a start begins, or refuses to start.
//   - Tick and Snapshot are the tick-off of rule 4.
//   - ReadStatus and Wait are the logic of "checkpoint show" and "checkpoint wait", List
//     and History that of the commands of their names, Examine that of "verify" as far as
//     slot, row and server tell.
//   - Desk changes a position for an operator: Advance, Accept, Drop.
//
// The order of durability is: the broker's acknowledgement, then the row, then the
// confirmation to the slot.
package checkpoint
