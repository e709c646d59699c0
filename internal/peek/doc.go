// Package peek looks at what lies between a publisher's position and the end of the WAL,
// and consumes nothing: it reads a temporary copy of the slot, with the decoder, the
// mapping and the parked events that the relay goes by. It works while a relay runs; what
// that has on its way is not published yet as far as the position tells, and counts.
package peek
