// Package parking keeps events that cannot be published now, beside the stream.
//
//   - Unit is what has an order: a topic and a key. Held is the set of units with
//     parked events, and says which arrivals must wait behind them. It is pure.
//   - State is the life of a parked event; states.go says who may change what.
//   - Event is one row of postrider.parked. Store is the relay's side of the table,
//     Desk that of the commands.
//
// The protocol is docs/decisions/0004-parking.md.
package parking
