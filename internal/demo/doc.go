// Package demo shows Postrider's promise being kept on one machine: a real
// PostgreSQL, a broker, a shop that writes orders with their events, the relay
// as a process of its own, a broker that is cut, a relay that is killed, and a
// verdict by the same oracle that judges the end-to-end tests.
//
//	Run ── stack     PostgreSQL and broker, in temporary folders
//	    ── child     `postrider setup`, then `postrider run`: the binary itself, so that kill -9 is kill -9
//	    ── shop      writers; they tell the tally what they committed and what they rolled back
//	    ── consumer  tells the tally what arrives
//	    ── witness   the oracle: reads commits from a slot of its own, samples the relay's slot
//	    ── screen    shows tally, slot and milestones
//	    ── script    when the broker is cut and the relay is killed
//
// Nothing of the relay is reached into: all of it is seen from outside.
package demo
