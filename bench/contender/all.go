package contender

// All is every contender, in the order in which a round runs them.
func All() []Contender {
	return []Contender{
		// Debezium and DebeziumTuned, Polling, Watermill: a line each, once they are there.
	}
}
