package devstack

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
)

// DefaultKafka is the broker version that is started where none is named.
const DefaultKafka = "4.1.1"

// minJava is what Kafka 4's broker needs.
const minJava = 17

//go:embed pom.xml
var pom []byte

// logConfig sends warnings and errors to the node's log file. Without it and
// the binding in pom.xml a broker that fails says nothing at all.
//
//go:embed log4j2.xml
var logConfig []byte

// ErrNoKafka says that this machine cannot run a real broker.
var ErrNoKafka = errors.New("a real Kafka broker needs Java 17 or newer, and Maven to fetch it once")

// kafkaJars gives the folder with the broker's jars, fetched by Maven once for
// each version, pom.xml and user.
func kafkaJars(ctx context.Context, version string) (string, error) {
	name := fmt.Sprintf("kafka-%s-%08x", version, crc32.ChecksumIEEE(pom))
	return cached(name, func(dir string) error {
		mvn, err := exec.LookPath("mvn")
		if err != nil {
			return fmt.Errorf("%w: no mvn on the PATH", ErrNoKafka)
		}
		scratch, err := os.MkdirTemp("", "postrider-maven-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(scratch)
		if err := os.WriteFile(filepath.Join(scratch, "pom.xml"), pom, 0o644); err != nil {
			return err
		}
		err = command{
			name: mvn, dir: scratch, env: os.Environ(),
			args: []string{
				"-q", "-B", "dependency:copy-dependencies", "-Dkafka.version=" + version,
				"-DoutputDirectory=" + dir, "-DincludeScope=runtime",
			},
		}.run(ctx)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrNoKafka, err)
		}
		return nil
	})
}

var javaVersion = regexp.MustCompile(`version "(\d+)`)

// findJava gives a runtime that is new enough: JAVA_HOME's, else the PATH's.
func findJava(ctx context.Context) (string, error) {
	java := "java"
	if home := os.Getenv("JAVA_HOME"); home != "" {
		java = filepath.Join(home, "bin", "java")
	}
	path, err := exec.LookPath(java)
	if err != nil {
		return "", fmt.Errorf("%w: no java on the PATH", ErrNoKafka)
	}
	out, err := exec.CommandContext(ctx, path, "-version").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w: %s -version: %w", ErrNoKafka, path, err)
	}
	m := javaVersion.FindSubmatch(out)
	if m == nil {
		return "", fmt.Errorf("%w: %s tells no version", ErrNoKafka, path)
	}
	if n, _ := strconv.Atoi(string(m[1])); n < minJava {
		return "", fmt.Errorf("%w: %s is version %d", ErrNoKafka, path, n)
	}
	return path, nil
}
