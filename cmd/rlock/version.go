package main

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
)

func (p *program) version(args []string) int {
	flags := p.flags("version", nil)
	if code, ok := p.parse(flags, args); !ok {
		return code
	}
	if flags.NArg() > 0 {
		return p.misuse(errors.New("version takes no arguments"), "")
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{}
	}
	fmt.Fprintln(p.out, versionLine(info))
	return 0
}

func versionLine(info *debug.BuildInfo) string {
	version := info.Main.Version
	if version == "" {
		version = "(devel)"
	}
	parts := []string{fmt.Sprintf("rlock %s, %s %s/%s", version, runtime.Version(), runtime.GOOS, runtime.GOARCH)}
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			parts = append(parts, "revision "+s.Value)
		case s.Key == "vcs.modified" && s.Value == "true":
			parts = append(parts, "modified")
		}
	}
	return strings.Join(parts, ", ")
}
