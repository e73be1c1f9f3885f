package rlockotel

import "runtime/debug"

// version is that of the instrumentation scope, otel_scope_version in Prometheus: of this module, as the program was built with it. "" is
// none, as for a program that was built without module information.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	return versionIn(info)
}

func versionIn(info *debug.BuildInfo) string {
	for _, m := range append(info.Deps, &info.Main) {
		if m.Path != scope {
			continue
		}
		if m.Replace != nil {
			m = m.Replace
		}
		return m.Version
	}
	return ""
}
