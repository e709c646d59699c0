package contender

// All is every contender, in the order in which a round runs them.
func All() []Contender {
	return []Contender{
		DebeziumDefault(), DebeziumTuned(), &Polling{}, &Watermill{},
	}
}
