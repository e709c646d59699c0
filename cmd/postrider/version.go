package main

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version is set by the release build: -ldflags "-X main.version=v1.2.3".
var version = ""

// versionInfo is what `version --json` prints; its fields are a contract.
type versionInfo struct {
	Version string `json:"version"`
	Commit  string `json:"commit,omitempty"`
	// Modified says that the source was not the commit's.
	Modified bool   `json:"modified,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

type versionOptions struct {
	out  io.Writer
	json bool
}

func newVersionCommand(a *app) *cobra.Command {
	opts := versionOptions{out: a.out}
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Long:    "Prints the release, the commit it was built from, the Go version and the platform. It reads no configuration.",
		Example: "  postrider version\n  postrider version --json",
		Args:    noArgs,
		RunE:    func(*cobra.Command, []string) error { return opts.run() },
	}
	addJSON(cmd, &opts.json)
	return cmd
}

func (o *versionOptions) run() error {
	info := readVersion()
	if o.json {
		return writeJSON(o.out, info)
	}
	details := info.Go + ", " + info.Platform
	if info.Commit != "" {
		details = "commit " + info.Commit + ", " + details
	}
	_, err := fmt.Fprintf(o.out, "postrider %s (%s)\n", info.Version, details)
	return err
}

func readVersion() versionInfo {
	info := versionInfo{Version: version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	build, ok := debug.ReadBuildInfo()
	if ok {
		for _, s := range build.Settings {
			switch s.Key {
			case "vcs.revision":
				info.Commit = s.Value
			case "vcs.modified":
				info.Modified = s.Value == "true"
			}
		}
		if info.Version == "" && build.Main.Version != "(devel)" {
			info.Version = build.Main.Version
		}
	}
	if info.Version == "" {
		info.Version = "unreleased"
	}
	return info
}
