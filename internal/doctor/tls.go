package doctor

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"strings"
	"time"
)

// expiresSoon is how long a certificate must last for nobody to be told.
const expiresSoon = 30 * 24 * time.Hour

// hostOf is the address without its port; a Unix socket's path stays.
func hostOf(addr net.Addr) string {
	if addr.Network() == "unix" {
		return "/" + strings.TrimPrefix(addr.String(), "/")
	}
	host, _, err := net.SplitHostPort(addr.String())
	if err != nil {
		return addr.String()
	}
	return host
}

func checkPostgresTLS(ctx context.Context, e *exam) []answer {
	conn, err := e.sql(ctx)
	if err != nil {
		return unanswered(err)
	}
	wire := conn.PgConn().Conn()
	secure, encrypted := wire.(*tls.Conn)
	if !encrypted {
		if localhost(hostOf(e.server.peer)) {
			return ok("not encrypted; the connection does not leave this machine")
		}
		return warn("postgres.sslmode: verify-full, with sslrootcert, and ssl = on on the server",
			"not encrypted: events and the password's proof cross the network in the clear")
	}
	state := secure.ConnectionState()
	found := e.expiry("the server's certificate", "renew it; PostgreSQL reads the new one on SELECT pg_reload_conf()", leaf(state))
	found = append(found, e.expiry("our client certificate", "renew it (postgres.sslcert)", client(conn.Config().TLSConfig))...)
	return orOK(found, "%s%s%s", tls.VersionName(state.Version), verifiedText(state), lastsText(e.cfg.Now(), leaf(state)))
}

func verifiedText(state tls.ConnectionState) string {
	if len(state.VerifiedChains) > 0 {
		return ", the server's certificate is verified"
	}
	return ", the server's certificate is not verified (sslmode=verify-full does)"
}

func leaf(state tls.ConnectionState) *x509.Certificate {
	if len(state.PeerCertificates) == 0 {
		return nil
	}
	return state.PeerCertificates[0]
}

// client is the certificate that we show, nil where there is none.
func client(cfg *tls.Config) *x509.Certificate {
	if cfg == nil || len(cfg.Certificates) == 0 || len(cfg.Certificates[0].Certificate) == 0 {
		return nil
	}
	cert, err := x509.ParseCertificate(cfg.Certificates[0].Certificate[0])
	if err != nil {
		return nil // the handshake has used it: cannot happen
	}
	return cert
}

func lastsText(now time.Time, cert *x509.Certificate) string {
	if cert == nil {
		return ""
	}
	return fmt.Sprintf(", valid until %s", day(cert.NotAfter))
}

func day(t time.Time) string { return t.UTC().Format(time.DateOnly) }

func (e *exam) expiry(whose, fix string, cert *x509.Certificate) []answer {
	if cert == nil {
		return nil
	}
	left := cert.NotAfter.Sub(e.cfg.Now())
	switch {
	case left <= 0:
		return fail(fix, "%s ended on %s", whose, day(cert.NotAfter))
	case left < expiresSoon:
		return warn(fix, "%s ends on %s, in %s: from then on nobody can connect who checks it", whose, day(cert.NotAfter), words(left.Truncate(time.Hour)))
	}
	return nil
}
