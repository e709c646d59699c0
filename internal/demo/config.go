package demo

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// configText is what an operator would write, with the mapping spelled out.
const configText = `# Written by postrider demo.
postgres:
  dsn: %q
  slot: %s
  publication: %s
kafka:
  brokers: [%s]
sources:
  - table: %s
    mapping:
      event_id: event_id
      key: aggregate_id
      payload: payload
      aggregate_type: aggregate_type
      event_type: event_type
      aggregate_version: aggregate_version
      aggregate_version_header: %s
    routes:
      - topic: %s${aggregate_type}
admin:
  listen: 127.0.0.1:0
log:
  format: json
`

// versionHeader carries the aggregate's version; id and event_type have their
// headers by default.
const versionHeader = "aggregate_version"

// writeConfig writes the relay's configuration and names the file.
func (s *stack) writeConfig() (string, error) {
	path := filepath.Join(s.root, "postrider.yaml")
	text := fmt.Sprintf(configText, s.dsn(), relaySlot, publication, strings.Join(s.broker.Bootstrap(), ", "),
		outboxTable, versionHeader, topicPrefix)
	return path, os.WriteFile(path, []byte(text), 0o644)
}
