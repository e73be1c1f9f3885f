//go:build race

package older

// raceFlags are those with which go builds programs like this test.
func raceFlags() []string { return []string{"-race"} }
