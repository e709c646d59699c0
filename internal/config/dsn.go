package config

import (
	"errors"
	"io/fs"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

func (p *Postgres) usesFields() bool { return p.DSN.IsZero() && p.DSNFile == "" }

// loadConnString assembles the DSN.
func (p *Postgres) loadConnString(r *report, f files) {
	password := f.either(r, "postgres.password", p.Password, p.PasswordFile)
	var conn Secret
	if p.usesFields() {
		conn = p.fromFields(r, f, password)
	} else {
		conn = p.fromDSN(r, f, password)
	}
	p.connString = withTimeout(conn, time.Duration(p.ConnectTimeout))
}

// withTimeout adds connect_timeout, in whole seconds, to a string that has none.
func withTimeout(conn Secret, d time.Duration) Secret {
	text := conn.Reveal()
	if text == "" || strings.Contains(text, "connect_timeout") {
		return conn
	}
	setting := "connect_timeout=" + strconv.Itoa(int((d+time.Second-1)/time.Second))
	switch {
	case !isURL(text):
		text += " " + setting
	case strings.Contains(text, "?"):
		text += "&" + setting
	default:
		text += "?" + setting
	}
	return NewSecret(text)
}

func (p *Postgres) fromFields(r *report, f files, password Secret) Secret {
	for _, required := range [][2]string{{"host", p.Host}, {"database", p.Database}, {"user", p.User}} {
		if required[1] == "" {
			r.follow("postgres."+required[0], "is missing; give host, database and user, or dsn")
		}
	}
	pairs := []string{
		"host", p.Host, "port", strconv.Itoa(p.Port), "dbname", p.Database, "user", p.User,
		"password", password.Reveal(), "sslmode", p.SSLMode,
	}
	if strings.Contains(p.Host, ",") {
		// Of several servers only the primary has the slot.
		pairs = append(pairs, "target_session_attrs", "primary")
	}
	for _, file := range [][2]string{{"sslrootcert", p.SSLRootCert}, {"sslcert", p.SSLCert}, {"sslkey", p.SSLKey}} {
		if file[1] != "" {
			pairs = append(pairs, file[0], f.path(file[1]))
		}
	}
	return NewSecret(keywordValue(pairs))
}

func (p *Postgres) fromDSN(r *report, f files, password Secret) Secret {
	for _, field := range []string{"host", "port", "database", "user", "sslmode", "sslrootcert", "sslcert", "sslkey"} {
		if r.has("postgres." + field) {
			r.follow("postgres."+field, "is given beside dsn; put it into the dsn or leave the dsn out")
		}
	}
	dsn := f.either(r, "postgres.dsn", p.DSN, p.DSNFile)
	if dsn.IsZero() || password.IsZero() {
		return dsn
	}
	parsed, err := pgconn.ParseConfig(dsn.Reveal())
	if err != nil {
		return dsn // checkParsed says so
	}
	if dsnHasPassword(dsn.Reveal()) {
		r.follow("postgres.password", "is given beside a dsn that has a password; keep one of them")
		return dsn
	}
	return withPassword(dsn, parsed.User, password)
}

// dsnHasPassword looks at the text, because the driver also takes PGPASSWORD
// and the password file into account.
func dsnHasPassword(dsn string) bool {
	if u, err := url.Parse(dsn); err == nil && isURL(dsn) {
		_, ok := u.User.Password()
		return ok || u.Query().Has("password")
	}
	return strings.Contains(dsn, "password")
}

func withPassword(dsn Secret, user string, password Secret) Secret {
	if !isURL(dsn.Reveal()) {
		return NewSecret(dsn.Reveal() + " " + keywordValue([]string{"password", password.Reveal()}))
	}
	u, err := url.Parse(dsn.Reveal())
	if err != nil {
		return dsn
	}
	if u.User != nil {
		user = u.User.Username()
	}
	u.User = url.UserPassword(user, password.Reveal())
	return NewSecret(u.String())
}

func isURL(dsn string) bool {
	return strings.HasPrefix(dsn, "postgres://") || strings.HasPrefix(dsn, "postgresql://")
}

// checkParsed has the driver parse the DSN, so that a mistake is found here and
// not at the first connection. The driver's own message is not shown: it may
// quote a part of a password.
func (p *Postgres) checkParsed(r *report) {
	if p.usesFields() && !r.clean("postgres") || p.connString.IsZero() {
		return // the consequence of a problem that was named already
	}
	path := "postgres"
	if !p.usesFields() {
		path = "postgres.dsn"
		if p.DSNFile != "" {
			path = "postgres.dsn_file"
		}
	}
	parsed, err := pgconn.ParseConfig(p.connString.Reveal())
	if err != nil {
		if pathErr := new(fs.PathError); errors.As(err, &pathErr) {
			r.follow(path, "cannot read file %s: %s", pathErr.Path, pathErr.Err)
			return
		}
		r.follow(path, "is not a connection string that PostgreSQL's clients understand; want postgres://user@host:port/database or host=… user=… dbname=… "+
			"(a password with special characters is safest in password_file)")
		return
	}
	if _, ok := parsed.RuntimeParams["replication"]; ok {
		r.follow(path, "must not set replication; Postrider opens both kinds of session itself")
	}
}

// keywordValue writes libpq's keyword/value form; empty values are left out.
func keywordValue(pairs []string) string {
	escape := strings.NewReplacer(`\`, `\\`, `'`, `\'`)
	var parts []string
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			parts = append(parts, pairs[i]+"='"+escape.Replace(pairs[i+1])+"'")
		}
	}
	return strings.Join(parts, " ")
}

// ConnStringFor is ConnString for another database of the same server.
func (p *Postgres) ConnStringFor(database string) string {
	conn := p.connString.Reveal()
	u, err := url.Parse(conn)
	if !isURL(conn) || err != nil {
		return conn + " " + keywordValue([]string{"dbname", database}) // the last one counts
	}
	u.Path = "/" + database
	query := u.Query()
	query.Del("dbname")
	query.Del("database")
	u.RawQuery = query.Encode()
	return u.String()
}

// ConnString is the whole connection string, secrets and all.
func (p *Postgres) ConnString() string { return p.connString.Reveal() }
