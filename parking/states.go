package parking

// State is where a parked event stands.
type State string

// The states of a parked event.
const (
	// Parked waits for somebody, or stands behind one that does.
	Parked State = "parked"
	// Retry was asked for and not yet taken up.
	Retry State = "retry"
	// Publishing belongs to the relay: it is on its way.
	Publishing State = "publishing"
	// Published was acknowledged.
	Published State = "published"
	// Discarded was given up, for a written reason.
	Discarded State = "discarded"
)

// Outstanding says that the event still keeps its unit.
func (s State) Outstanding() bool { return s == Parked || s == Retry || s == Publishing }

// Actor is who changes a state.
type Actor int

const (
	// Relay is the process that holds the slot.
	Relay Actor = 1 << iota
	// Command is `postrider parked`.
	Command
)

// transitions is the table of decision 4: from, to, by whom (both where or-ed). What is not in it is
// refused by both sides, since each update names the state that it comes from.
var transitions = map[[2]State]Actor{
	{Parked, Retry}:         Command,
	{Retry, Parked}:         Command | Relay, // relay: one before it in its unit was refused again
	{Parked, Discarded}:     Command,
	{Retry, Publishing}:     Relay,
	{Parked, Publishing}:    Relay, // held ones follow by themselves
	{Publishing, Published}: Relay,
	{Publishing, Parked}:    Relay, // refused again, or behind one that was
	{Publishing, Retry}:     Relay, // taken up again after a restart
}

// May says whether an actor may change a state.
func May(by Actor, from, to State) bool {
	return transitions[[2]State{from, to}]&by != 0
}
