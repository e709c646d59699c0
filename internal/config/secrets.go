package config

import (
	"crypto/tls"
	"crypto/x509"
	"path/filepath"
	"strings"
)

// files reads what the configuration names, relative to the configuration's folder.
type files struct {
	dir  string
	read func(path string) ([]byte, error)
}

func (f files) path(name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(f.dir, name)
}

// content reports a file that cannot be read by name and reason, never its content.
func (f files) content(r *report, path, name string) ([]byte, bool) {
	data, err := f.read(f.path(name))
	if err == nil {
		return data, true
	}
	r.follow(path, "cannot read file %s: %s", f.path(name), reasonOf(err))
	return nil, false
}

// secret is the file's text without the line break at its end, which editors add.
func (f files) secret(r *report, path, name string) (Secret, bool) {
	data, ok := f.content(r, path, name)
	if !ok {
		return Secret{}, false
	}
	text := strings.TrimSuffix(strings.TrimSuffix(string(data), "\n"), "\r")
	if text == "" || strings.ContainsAny(text, "\n\x00") {
		r.follow(path, "file %s must hold one line that is not empty", f.path(name))
		return Secret{}, false
	}
	return NewSecret(text), true
}

// either gives the inline secret or the file's; both at once is a problem.
func (f files) either(r *report, path string, inline Secret, fileName string) Secret {
	if fileName == "" {
		return inline
	}
	if !inline.IsZero() {
		r.follow(path+"_file", "is given beside %s; keep one of them", lastKey(path))
		return inline
	}
	secret, _ := f.secret(r, path+"_file", fileName)
	return secret
}

func (c *Config) loadSecrets(r *report, f files) {
	if sasl := c.Kafka.SASL; sasl != nil {
		sasl.resolved = f.either(r, "kafka.sasl.password", sasl.Password, sasl.PasswordFile)
		if sasl.Password.IsZero() && sasl.PasswordFile == "" {
			r.follow("kafka.sasl.password", "is missing; give password or password_file")
		}
	}
	if t := c.Kafka.TLS; t != nil {
		t.client = t.load(r, f)
	}
	c.Postgres.loadConnString(r, f)
}

func (t *KafkaTLS) load(r *report, f files) *tls.Config {
	client := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName}
	if t.CAFile != "" {
		if pem, ok := f.content(r, "kafka.tls.ca_file", t.CAFile); ok {
			client.RootCAs = x509.NewCertPool()
			if !client.RootCAs.AppendCertsFromPEM(pem) {
				r.follow("kafka.tls.ca_file", "file %s holds no certificate in PEM", f.path(t.CAFile))
			}
		}
	}
	if (t.CertFile == "") != (t.KeyFile == "") {
		r.follow("kafka.tls", "wants cert_file and key_file together or neither")
		return client
	}
	if t.CertFile == "" {
		return client
	}
	cert, certOK := f.content(r, "kafka.tls.cert_file", t.CertFile)
	key, keyOK := f.content(r, "kafka.tls.key_file", t.KeyFile)
	if !certOK || !keyOK {
		return client
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		// The library's reasons speak of formats and mismatches, never of bytes.
		r.follow("kafka.tls.key_file", "certificate and key do not load: %s", err.Error())
		return client
	}
	client.Certificates = []tls.Certificate{pair}
	return client
}

func lastKey(path string) string { return path[strings.LastIndexByte(path, '.')+1:] }
