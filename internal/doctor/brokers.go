package doctor

import (
	"context"
	"crypto/tls"
	"net"

	"github.com/postrider/postrider/internal/operr"
)

func checkBrokers(ctx context.Context, e *exam) (found []answer) {
	r, err := e.kafka.reach(ctx)
	if err != nil {
		return fullProblem(err)
	}
	reachable := r.good() != ""
	for i := range r.endpoints {
		p := &r.endpoints[i]
		switch {
		case p.err == nil:
		case !p.bootstrap:
			found = append(found, fail("advertised.listeners on the broker must name an address that is reachable from here",
				"a broker is known as %s, and there: %s", p.addr, oneLine(p.err.Error()))...)
		case reachable:
			// The others serve; a start by this one alone would not.
			found = append(found, warn(operr.HintOf(p.err)+"; or take it out of kafka.brokers", "%s", oneLine(p.err.Error()))...)
		default:
			found = append(found, fail(operr.HintOf(p.err), "%s", oneLine(p.err.Error()))...)
		}
	}
	if r.err != nil {
		found = append(found, fail(operr.HintOf(r.err), "%s", oneLine(r.err.Error()))...)
	}
	return orOK(found, "%s; cluster %s of %s", plural(len(e.cfg.Kafka.Brokers), "bootstrap address answers", "bootstrap addresses answer"), r.id, plural(len(r.brokers), "broker", "brokers"))
}

func checkKafkaTLS(ctx context.Context, e *exam) (found []answer) {
	r, err := e.kafka.reach(ctx)
	if err != nil || r.good() == "" {
		return unanswered(errNoKafka)
	}
	if e.cfg.Kafka.TLS == nil {
		return e.plainKafka(r)
	}
	version, until := "", ""
	for i := range r.endpoints {
		state := r.endpoints[i].tls
		if state == nil {
			continue
		}
		cert := leaf(*state)
		found = append(found, e.expiry("the certificate of broker "+r.endpoints[i].addr, "renew it in the broker's keystore (ssl.keystore.location)", cert)...)
		version, until = tls.VersionName(state.Version), lastsText(e.cfg.Now(), cert)
	}
	found = append(found, e.expiry("our client certificate", "renew it (kafka.tls.cert_file)", client(e.cfg.Kafka.TLS))...)
	return orOK(found, "%s%s", version, until)
}

// plainKafka: within one machine nobody listens in.
func (e *exam) plainKafka(r *reached) []answer {
	const fix = "kafka.tls: {ca_file: …}, and a listener of SSL or SASL_SSL on the brokers"
	for i := range r.endpoints {
		if host, _, err := net.SplitHostPort(r.endpoints[i].addr); err == nil && localhost(host) {
			continue
		}
		if e.cfg.Kafka.SASL != nil && e.cfg.Kafka.SASL.Mechanism == "PLAIN" {
			return fail(fix, "not encrypted: SASL PLAIN sends the password itself across the network in the clear")
		}
		return warn(fix, "not encrypted: events cross the network in the clear")
	}
	return ok("not encrypted; the connections do not leave this machine")
}
