package main

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

const usageCompletion = `usage: rlock completion bash|zsh|fish

Prints what lets a shell complete commands, flags and files of rlock:

  bash   source <(rlock completion bash)       in ~/.bashrc
  zsh    source <(rlock completion zsh)        in ~/.zshrc, after compinit
  fish   rlock completion fish | source        in ~/.config/fish/config.fish

Names of locks are not completed: that would ask Redis at each key.

exit code  0   2 usage
`

// shells are those that rlock completion knows.
var shells = []string{"bash", "zsh", "fish"}

func (p *program) completion(args []string) int {
	flags := p.flags("completion", nil)
	shell, _, code, ok := p.parseOne(flags, args)
	if !ok {
		return code
	}
	switch shell {
	case "bash":
		fmt.Fprint(p.out, bashCompletion())
	case "zsh":
		fmt.Fprint(p.out, zshCompletion())
	case "fish":
		fmt.Fprint(p.out, fishCompletion())
	default:
		return p.misuse(errors.New("completion needs the name of a shell: bash, zsh or fish"), "completion")
	}
	return 0
}

// completed is what can be completed of a command, as its help says.
type completed struct {
	name, about string
	flags       []completedFlag
	files       bool     // its argument is a file
	words       []string // or one of these
	wraps       bool     // a command line follows after --
}

type completedFlag struct {
	name, about string
	value       string // as the help calls it; "" if the flag has none
}

func (f completedFlag) isFile() bool { return f.value == "F" }

var (
	commandInHelp  = regexp.MustCompile(`(?m)^  rlock (\S+).*?  +(.*)$`)
	flagInHelp     = regexp.MustCompile(`^  -([\w-]+)(?: (\S+))?  +(.*)$`)
	endOfAbout     = regexp.MustCompile(`[;:.]( |$)| \(`)
	argumentInHelp = regexp.MustCompile(`^usage: rlock \S+ .*FILE\n`)
)

// completions reads the help.
func completions() (all []completed) {
	var names []string
	for _, line := range commandInHelp.FindAllStringSubmatch(usage, -1) {
		all, names = append(all, completed{name: line[1], about: line[2]}), append(names, line[1])
	}
	for i := range all {
		c := &all[i]
		known := find(c.name)
		if known == nil { // help
			c.words = names
			continue
		}
		switch c.files = argumentInHelp.MatchString(known.usage); c.name {
		case "completion":
			c.words = shells
		case "run":
			c.wraps = true
		case "version":
			continue // it has no help of its own
		}
		var last *completedFlag
		for line := range strings.Lines(known.usage) {
			line = strings.TrimSuffix(line, "\n")
			if m := flagInHelp.FindStringSubmatch(line); m != nil {
				c.flags = append(c.flags, completedFlag{name: m[1], value: m[2], about: m[3]})
				last = &c.flags[len(c.flags)-1]
			} else if more, ok := strings.CutPrefix(line, "               "); ok && last != nil {
				last.about += " " + more
			} else {
				last = nil
			}
		}
		for i, f := range c.flags {
			if end := endOfAbout.FindString(f.about); end != "" {
				c.flags[i].about, _, _ = strings.Cut(f.about, end)
			}
		}
	}
	return all
}

// names returns the flags of a command that meet a condition.
func (c *completed) names(which func(completedFlag) bool) (all []string) {
	for _, f := range c.flags {
		if which(f) {
			all = append(all, "-"+f.name)
		}
	}
	return all
}

func isAny(completedFlag) bool      { return true }
func hasValue(f completedFlag) bool { return f.value != "" }
func hasFile(f completedFlag) bool  { return f.isFile() }
func quoteForShell(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
func quoteForFish(s string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, "'", `\'`).Replace(s) + "'"
}
func commandNames(all []completed) string {
	var names []string
	for _, c := range all {
		names = append(names, c.name)
	}
	return strings.Join(names, " ")
}

// patternOf returns a case of bash or zsh that matches words; one that matches nothing if there are none.
func patternOf(words []string) string {
	if len(words) == 0 {
		return "''"
	}
	return strings.Join(words, "|")
}

// bashCompletion needs no other package: no bash-completion.
func bashCompletion() string {
	all := completions()
	var out strings.Builder
	fmt.Fprintf(&out, `# Completion of rlock for bash: source <(rlock completion bash)

_rlock_words() { COMPREPLY=($(compgen -W "$1" -- "$2")); }

_rlock_files() {
	local file
	compopt -o filenames 2>/dev/null # bash 4
	while IFS= read -r file; do COMPREPLY+=("$file"); done < <(compgen -f -- "$1")
}

_rlock() {
	local word=${COMP_WORDS[COMP_CWORD]} before= i
	COMPREPLY=()
	if ((COMP_CWORD == 1)); then
		_rlock_words %s "$word"
		return
	fi
	before=${COMP_WORDS[COMP_CWORD - 1]}
	case ${COMP_WORDS[1]} in
`, quoteForShell(commandNames(all)))
	for _, c := range all {
		fmt.Fprintf(&out, "\t%s)\n", c.name)
		if c.wraps {
			out.WriteString(`		for ((i = 2; i < COMP_CWORD; i++)); do
			[[ ${COMP_WORDS[i]} == -- ]] || continue
			if declare -F _command_offset >/dev/null; then
				_command_offset $((i + 1))
			elif ((i + 1 == COMP_CWORD)); then
				COMPREPLY=($(compgen -c -- "$word"))
			else
				_rlock_files "$word"
			fi
			return
		done
`)
		}
		files, values := c.names(hasFile), c.names(hasValue)
		values = slices.DeleteFunc(values, func(name string) bool { return slices.Contains(files, name) })
		if len(c.flags) > 0 {
			fmt.Fprintf(&out, `		case $before in
		%s) _rlock_files "$word" && return ;;
		%s) return ;;
		esac
		[[ $word != -* ]] || { _rlock_words %s "$word" && return; }
`, patternOf(files), patternOf(values), quoteForShell(strings.Join(c.names(isAny), " ")))
		}
		switch {
		case c.files:
			out.WriteString("\t\t_rlock_files \"$word\"\n")
		case len(c.words) > 0:
			fmt.Fprintf(&out, "\t\t((COMP_CWORD > 2)) || _rlock_words %s \"$word\"\n", quoteForShell(strings.Join(c.words, " ")))
		}
		out.WriteString("\t\t;;\n")
	}
	out.WriteString("\tesac\n}\n\ncomplete -F _rlock rlock\n")
	return out.String()
}

// zshCompletion works as a file in fpath, too.
func zshCompletion() string {
	all := completions()
	var out strings.Builder
	out.WriteString("#compdef rlock\n# Completion of rlock for zsh: source <(rlock completion zsh), or put this into a file _rlock of $fpath\n\n_rlock() {\n\tlocal -a all\n\tlocal -i dashes\n")
	out.WriteString("\tif ((CURRENT == 2)); then\n\t\tall=(\n")
	for _, c := range all {
		fmt.Fprintf(&out, "\t\t\t%s\n", quoteForShell(c.name+":"+c.about))
	}
	out.WriteString("\t\t)\n\t\t_describe command all\n\t\treturn\n\tfi\n\tcase $words[2] in\n")
	for _, c := range all {
		fmt.Fprintf(&out, "\t%s)\n", c.name)
		if c.wraps {
			out.WriteString(`		dashes=${words[(i)--]}
		if ((dashes < CURRENT)); then
			shift $dashes words
			((CURRENT -= dashes))
			_normal
			return
		fi
`)
		}
		files, values := c.names(hasFile), c.names(hasValue)
		values = slices.DeleteFunc(values, func(name string) bool { return slices.Contains(files, name) })
		if len(c.flags) > 0 {
			fmt.Fprintf(&out, "\t\tcase $words[CURRENT-1] in\n\t\t%s) _files; return ;;\n\t\t%s) _message value; return ;;\n\t\tesac\n", patternOf(files), patternOf(values))
			out.WriteString("\t\tif [[ $words[CURRENT] == -* ]]; then\n\t\t\tall=(\n")
			for _, f := range c.flags {
				fmt.Fprintf(&out, "\t\t\t\t%s\n", quoteForShell("-"+f.name+":"+f.about))
			}
			out.WriteString("\t\t\t)\n\t\t\t_describe -o flag all\n\t\t\treturn\n\t\tfi\n")
		}
		switch {
		case c.files:
			out.WriteString("\t\t_files\n")
		case len(c.words) > 0:
			fmt.Fprintf(&out, "\t\t((CURRENT > 3)) || compadd %s\n", strings.Join(c.words, " "))
		}
		out.WriteString("\t\t;;\n")
	}
	out.WriteString("\tesac\n}\n\nif [[ $funcstack[1] == _rlock ]]; then\n\t_rlock \"$@\"\nelse\n\tcompdef _rlock rlock\nfi\n")
	return out.String()
}

func fishCompletion() string {
	all := completions()
	var out strings.Builder
	out.WriteString(`# Completion of rlock for fish: rlock completion fish | source

function __rlock_is
	set -l words (commandline -opc)
	test (count $words) -gt 1; and test $words[2] = $argv[1]; and not contains -- -- $words
end

function __rlock_wraps
	set -l words (commandline -opc)
	test (count $words) -gt 1; and test $words[2] = $argv[1]; and contains -- -- $words
end

function __rlock_wrapped
	set -l words (commandline -opc)
	set -l dashes (contains -i -- -- $words)
	set -l rest (string escape -- $words[(math $dashes + 1)..-1])
	complete -C (string join ' ' -- $rest (commandline -ct))
end

complete -c rlock -f
`)
	for _, c := range all {
		fmt.Fprintf(&out, "complete -c rlock -n __fish_use_subcommand -a %s -d %s\n", c.name, quoteForFish(c.about))
	}
	for _, c := range all {
		for _, f := range c.flags {
			how := ""
			switch {
			case f.isFile():
				how = " -r -F"
			case f.value != "":
				how = " -x"
			}
			fmt.Fprintf(&out, "complete -c rlock -n '__rlock_is %s' -o %s%s -d %s\n", c.name, f.name, how, quoteForFish(f.about))
		}
		switch {
		case c.wraps:
			fmt.Fprintf(&out, "complete -c rlock -n '__rlock_wraps %s' -a '(__rlock_wrapped)'\n", c.name)
		case c.files:
			fmt.Fprintf(&out, "complete -c rlock -n '__rlock_is %s' -F\n", c.name)
		case len(c.words) > 0:
			fmt.Fprintf(&out, "complete -c rlock -n '__rlock_is %s; and test (count (commandline -opc)) -eq 2' -a %s\n", c.name, quoteForFish(strings.Join(c.words, " ")))
		}
	}
	return out.String()
}
