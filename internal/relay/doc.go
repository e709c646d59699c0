// Package relay owns the pipeline: it wires replication, router, publisher and
// checkpoint together, and owns their lifecycle.
//
// Three lifetimes are nested in each other:
//
//   - Relay is one `postrider run`.
//   - A generation is one ledger and one set of lanes. It ends when what it knows
//     no longer holds: another timeline, or a position that somebody else moved.
//   - A link is one pair of connections to PostgreSQL that owns the slot. When it
//     breaks, the lanes freeze, the generation stays, and a new link takes over
//     where the old one was cut.
//
// The order of durability is fixed here, in keeper.go: broker's acknowledgement,
// then the checkpoint row, then the confirmation to the slot.
package relay
