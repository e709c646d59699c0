package contender

// Compressions are the variants of Postrider besides none.
var Compressions = []string{"gzip", "snappy", "lz4", "zstd"}

// All is every contender that publishes, in the order in which a round runs them. binary is a Postrider to use instead of
// building it; "" builds.
func All(binary string) []Contender {
	all := []Contender{&Postrider{Binary: binary}}
	for _, c := range Compressions {
		all = append(all, &Postrider{Binary: binary, Compression: c})
	}
	return append(all, &Postrider{Binary: binary, TLS: true}, &Debezium{}, &Debezium{Tuned: true}, &Polling{}, &Polling{Tuned: true}, &Watermill{})
}
