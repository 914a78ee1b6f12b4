package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"boxgate/api"
	"boxgate/config"
	"boxgate/policy"
	"boxgate/policy/document"
)

// Exit statuses of every command.
const (
	ExitOK         = 0
	ExitFailed     = 1
	ExitUsage      = 2
	ExitUntestable = 3 // of `gateway box selftest`: the box cannot be tested
	ExitDifferent  = 3 // of `gateway policy diff --exit-code`: the policies differ
)

// usageError is a mistake on the command line.
type usageError struct{ error }

// UsageError marks err as a mistake on the command line.
func UsageError(err error) error { return usageError{err} }

// Usagef returns a mistake on the command line.
func Usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// CommandExit is an exit status without a message: of a failed command in a box, with whose status the gateway exits, or
// one that is a result and not a failure.
type CommandExit struct{ Status int }

// Error implements error.
func (e CommandExit) Error() string {
	return fmt.Sprintf("the command exited with status %d", e.Status)
}

// StatusError is an error with a specific exit status.
type StatusError struct {
	Status int
	Err    error
}

// Error implements error.
func (e StatusError) Error() string { return e.Err.Error() }

// Unwrap returns the error without its status.
func (e StatusError) Unwrap() error { return e.Err }

// Report prints the error returned by cmd, if any, as text or as JSON, and returns the exit status.
func Report(w io.Writer, cmd *cobra.Command, err error, asJSON bool) int {
	if err == nil {
		return ExitOK
	}
	if exit, ok := errors.AsType[CommandExit](err); ok {
		return exit.Status
	}
	status, text := statusOf(err), Prose(Explain(cmd, err)) // an error can quote a program of a box
	switch {
	case asJSON:
		_ = WriteJSON(w, reportOf(err, text, status))
	case status == ExitUsage || explainedByHelp(err):
		fmt.Fprintf(w, "gateway: %s\nSee `%s --help`.\n", text, cmd.CommandPath())
	default:
		fmt.Fprintf(w, "gateway: %s\n", text)
	}
	return status
}

// explainedByHelp reports whether the help of the command is a useful next step: after a 400 or 422, or for an unusable
// file.
func explainedByHelp(err error) bool {
	refused, ok := errors.AsType[*api.ResponseError](err)
	_, ofFile := errors.AsType[fileError](err)
	return ofFile || ok && (refused.Status == http.StatusBadRequest || refused.Status == http.StatusUnprocessableEntity)
}

func statusOf(err error) int {
	if _, ok := errors.AsType[usageError](err); ok {
		return ExitUsage
	}
	if other, ok := errors.AsType[StatusError](err); ok {
		return other.Status
	}
	return ExitFailed
}

// report is an error as JSON.
type report struct {
	Error      string `json:"error"`
	ExitStatus int    `json:"exit_status"`
	HTTPStatus int    `json:"http_status,omitempty"` // of the gateway's answer
	Pointer    string `json:"pointer,omitempty"`     // to the refused field

	Problems []document.Problem `json:"problems,omitempty"` // every mistake, if there are several
}

func reportOf(err error, text string, status int) report {
	r := report{Error: text, ExitStatus: status}
	if refused, ok := errors.AsType[*api.ResponseError](err); ok {
		r.HTTPStatus, r.Pointer, r.Problems = refused.Status, refused.Pointer, refused.Problems
	}
	if invalid, ok := errors.AsType[*document.InvalidError](err); ok {
		r.Problems = invalid.Problems
	}
	if len(r.Problems) < 2 {
		r.Problems = nil
	}
	return r
}

// UnknownCommand returns the error for an unknown subcommand of cmd, and suggests those of that name in a group, or else those with
// the fewest different letters.
func UnknownCommand(cmd *cobra.Command, word string) error {
	var near []string
	if !cmd.HasParent() {
		near = commandsNamed(cmd, word)
	}
	for cmd.SuggestionsMinimumDistance = 1; len(near) == 0 && cmd.SuggestionsMinimumDistance <= 2; cmd.SuggestionsMinimumDistance++ {
		near = cmd.SuggestionsFor(word)
	}
	text := fmt.Sprintf("unknown command %q for %q", word, cmd.CommandPath())
	if len(near) > 0 {
		text += "; did you mean " + strings.Join(near, " or ") + "?"
	} else if cmd.HasParent() { // gateway itself has too many
		text += "; its commands are " + strings.Join(commandsOf(cmd), ", ")
	}
	return Usagef("%s", text)
}

// commandsNamed returns the paths of the commands of a name, below any other.
func commandsNamed(root *cobra.Command, word string) (paths []string) {
	for _, c := range root.Commands() {
		if c.IsAvailableCommand() && c.Name() == word {
			paths = append(paths, "`"+c.CommandPath()+"`")
		}
		paths = append(paths, commandsNamed(c, word)...)
	}
	return paths
}

// commandsOf returns the names of the commands of a group.
func commandsOf(group *cobra.Command) (names []string) {
	for _, c := range group.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	return names
}

// FlagError rewrites a flag error in terms of the command line.
func FlagError(cmd *cobra.Command, err error) error {
	if unknown, ok := errors.AsType[*pflag.NotExistError](err); ok && unknown.GetSpecifiedShortnames() == "" {
		name := unknown.GetSpecifiedName()
		if f := cmd.Flags().Lookup(name + "-file"); f != nil && strings.Contains(f.Usage, "standard input") {
			return Usagef("unknown flag --%s: other users can read the arguments of a process; give --%s FILE, or - for standard input", name, f.Name)
		}
		return Usagef("unknown flag --%s%s", name, nearestFlag(cmd, name))
	}
	if invalid, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		return Usagef("--%s: %q is not %s", invalid.GetFlag().Name, invalid.GetValue(), valueOf(invalid.GetFlag()))
	}
	return UsageError(err)
}

// nearestFlag suggests a flag that ends in the word, as --from-snapshot does in snapshot, or else one that begins like it.
func nearestFlag(cmd *cobra.Command, word string) string {
	var ending, names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if f.Hidden || word == "" {
			return
		}
		if strings.HasSuffix(f.Name, "-"+word) {
			ending = append(ending, f.Name)
		}
		if begin := min(len(word), 2); strings.HasPrefix(f.Name, word[:begin]) {
			names = append(names, f.Name)
		}
	})
	if len(ending) > 0 {
		names = ending
	}
	if len(names) == 0 {
		return ""
	}
	return "; did you mean --" + config.Nearest(word, names) + "?"
}

// valueOf describes the values that a flag accepts.
func valueOf(f *pflag.Flag) string {
	switch f.Value.Type() {
	case "uint16":
		return "a number from 0 to 65535"
	case "int", "int64", "uint", "uint64":
		return "a whole number"
	case "duration":
		return "a duration such as 10m, or 7d"
	case "bool":
		return "true or false"
	}
	return "a value that it takes"
}

// fileError is an error about a file named by the user.
type fileError struct{ error }

func fileErrorf(format string, args ...any) error { return fileError{fmt.Errorf(format, args...)} }

// WriteError explains why a file named by the user cannot be written. err may be about a temporary file next to it.
func WriteError(path string, err error) error {
	_, ofFile := errors.AsType[*fs.PathError](err)
	_, ofLink := errors.AsType[*os.LinkError](err)
	if !ofFile && !ofLink {
		return err
	}
	dir := filepath.Dir(path)
	_, missing := os.Stat(dir)
	number, system := errors.AsType[syscall.Errno](err)
	switch {
	case errors.Is(err, fs.ErrNotExist) && errors.Is(missing, fs.ErrNotExist):
		return fileErrorf("%s cannot be written: there is no directory %s; make it with `mkdir -p %s`", path, dir, dir)
	case errors.Is(err, fs.ErrPermission):
		return fileErrorf("%s cannot be written: permission denied", path)
	case system:
		return fileErrorf("%s cannot be written: %w", path, number)
	}
	return fileErrorf("%s cannot be written", path)
}

// FileError explains why a file named by the user cannot be used.
func FileError(err error) error {
	failed, ok := errors.AsType[*fs.PathError](err)
	switch {
	case !ok:
		return err
	case errors.Is(err, fs.ErrNotExist):
		return fileErrorf("there is no file %s", failed.Path)
	case errors.Is(err, fs.ErrPermission):
		return fileErrorf("%s cannot be read: permission denied", failed.Path)
	}
	return fileErrorf("%s cannot be read: %w", failed.Path, failed.Err)
}

// sentBy is the prefix of the annotations made by [MapFields].
const sentBy = "boxgate:sent:"

// MapFields records which flag or argument of cmd fills each field of its requests, by JSON pointer. A field without an entry
// belongs to the flag of the same name: /expires_in to --expires-in. A flag that ends in "=" takes NAME=VALUE.
func MapFields(cmd *cobra.Command, parts map[string]string) {
	if cmd.Annotations == nil {
		cmd.Annotations = map[string]string{}
	}
	for pointer, from := range parts {
		cmd.Annotations[sentBy+pointer] = from
	}
}

// Explain rewrites an error of cmd in terms of its command line. It lists every problem of a rejected document, each with
// its flag or argument and in the unit of that flag. For a 404 it adds the command that lists the existing names.
func Explain(cmd *cobra.Command, err error) string {
	text := err.Error()
	if refused, ok := errors.AsType[*api.ResponseError](err); ok {
		message := refusal(cmd, refused)
		if refused.Status == http.StatusUnauthorized {
			message = keyRefused()
		}
		if list := listFor(cmd, refused); list != "" && !strings.Contains(message, list) && !strings.HasSuffix(message, "?") {
			message += "; see `" + list + "`"
		}
		return strings.Replace(text, refused.Error(), message, 1)
	}
	if invalid, ok := errors.AsType[*document.InvalidError](err); ok && len(invalid.Problems) > 1 {
		return strings.Replace(text, invalid.Error(), mistakes(cmd, invalid.Problems), 1)
	}
	return text
}

// refusal returns the message of a rejected request, with flags instead of JSON pointers.
func refusal(cmd *cobra.Command, refused *api.ResponseError) string {
	switch {
	case len(refused.Problems) > 0:
		return mistakes(cmd, refused.Problems)
	case refused.Pointer != "":
		message := strings.TrimPrefix(refused.Message, refused.Pointer+": ")
		return mistakes(cmd, []document.Problem{{Pointer: refused.Pointer, Message: message}})
	}
	return inFlags(cmd, refused.Message)
}

// ofQuery matches a query parameter that a message of the API names, at its beginning or as another one that it needs.
var ofQuery = regexp.MustCompile(`^query parameter "(\w+)"| needs "(\w+)"`)

// inFlags rewrites a message about query parameters in terms of the flags that fill them.
func inFlags(cmd *cobra.Command, message string) string {
	if !strings.HasPrefix(message, "query parameter ") {
		return message
	}
	return ofQuery.ReplaceAllStringFunc(message, func(found string) string {
		m := ofQuery.FindStringSubmatch(found)
		flag := cmd.Flags().Lookup(strings.ReplaceAll(m[1]+m[2], "_", "-"))
		switch {
		case flag == nil || flag.Hidden:
			return found
		case m[2] != "":
			return " needs --" + flag.Name
		}
		return "--" + flag.Name
	})
}

// keyRefused returns the message for a 401: which key was sent, and how to get another one.
func keyRefused() string {
	const remedy = "; on the gateway's host, `sudo gateway api-key create --name NAME --role ROLE` makes one"
	if os.Getenv(config.APIKeyVariable) != "" {
		return "the gateway does not accept the API key in " + config.APIKeyVariable + remedy
	}
	return "the gateway does not accept the API key in its state directory: is --config the configuration that it runs with? To use another key, set " + config.APIKeyVariable + remedy
}

// maxMistakes bounds the mistakes printed. --json prints all of them.
const maxMistakes = 50

// mistakes formats problems: a single one on the line of the error, several one per line below it.
func mistakes(cmd *cobra.Command, list []document.Problem) string {
	if len(list) == 1 {
		return mistake(cmd, list[0])
	}
	lines := []string{Count(len(list), "mistake", "mistakes") + ":"}
	for _, p := range list[:min(len(list), maxMistakes)] {
		lines = append(lines, "  "+mistake(cmd, p))
	}
	if more := len(list) - maxMistakes; more > 0 {
		lines = append(lines, fmt.Sprintf("  and %d more, which --json lists", more))
	}
	return strings.Join(lines, "\n")
}

func mistake(cmd *cobra.Command, p document.Problem) string {
	from := origin(cmd, p.Pointer)
	if from == "" {
		return p.Message
	}
	if f := cmd.Flags().Lookup(strings.TrimPrefix(from, "--")); f != nil && f.Value.Type() == "duration" {
		return from + ": " + inDurations(p.Message)
	}
	if _, name, named := strings.Cut(from, " "); named {
		if limit, known := policy.LimitNamed(name); known && limit.Bytes() {
			return from + ": " + inBytes(p.Message)
		}
	}
	return from + ": " + p.Message
}

// largeNumber matches numbers of bytes that are easier to read with a unit.
var largeNumber = regexp.MustCompile(`\b\d{4,18}\b`)

// inBytes rewrites the numbers of a message in the syntax of flags for bytes: 16MiB.
func inBytes(message string) string {
	return largeNumber.ReplaceAllStringFunc(message, func(found string) string {
		n, err := strconv.ParseInt(found, 10, 64)
		if err != nil {
			return found
		}
		return config.Size(n).String()
	})
}

// origin returns the flag or argument that fills the field of the request at pointer, followed by the rest of the pointer
// if the flag contains a whole document. If there is no such flag, it returns the pointer.
func origin(cmd *cobra.Command, pointer string) string {
	for at := pointer; at != ""; at = at[:strings.LastIndexByte(at, '/')] {
		from, rest := cmd.Annotations[sentBy+at], pointer[len(at):]
		if from == "" {
			name := strings.ReplaceAll(strings.TrimPrefix(at, "/"), "_", "-")
			if f := cmd.Flags().Lookup(name); f == nil || f.Hidden {
				continue
			}
			from = "--" + name
		}
		_, err := strconv.Atoi(strings.TrimPrefix(rest, "/"))
		switch {
		case rest == "" || err == nil: // an element of a flag that may be repeated
			return strings.TrimSuffix(from, "=")
		case strings.HasSuffix(from, "="):
			return strings.TrimSuffix(from, "=") + " " + strings.TrimPrefix(rest, "/")
		}
		return from + ": " + rest
	}
	return pointer
}

// numbers matches a number or a range with its unit in a message of the API.
var numbers = regexp.MustCompile(`\b(\d+)( and | to | or |)(\d*) (milliseconds|seconds|second)\b`)

// longDuration matches a whole number of hours as time.Duration prints it.
var longDuration = regexp.MustCompile(`\b(\d+)h0m0s\b`)

// inDurations rewrites the seconds and milliseconds of a message in the syntax of duration flags: "between 1s and 30d".
func inDurations(message string) string {
	message = longDuration.ReplaceAllStringFunc(message, func(found string) string {
		return shortDuration(strings.TrimSuffix(found, "h0m0s"), time.Hour)
	})
	return numbers.ReplaceAllStringFunc(message, func(found string) string {
		m := numbers.FindStringSubmatch(found)
		unit := time.Second
		if m[4] == "milliseconds" {
			unit = time.Millisecond
		}
		if m[3] == "" {
			return shortDuration(m[1], unit)
		}
		return shortDuration(m[1], unit) + m[2] + shortDuration(m[3], unit)
	})
}

// withoutZeros matches the zeros at the end of a duration such as 1h0m0s.
var withoutZeros = regexp.MustCompile(`([hm])(?:0m)?0s$`)

// shortDuration formats a number of units in the syntax of duration flags: 30d, 1h30m or 1s.
func shortDuration(number string, unit time.Duration) string {
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n > int64(1<<62/unit) {
		return number
	}
	d := time.Duration(n) * unit
	const day = 24 * time.Hour
	if d >= day && d%day == 0 {
		return strconv.FormatInt(int64(d/day), 10) + "d"
	}
	return withoutZeros.ReplaceAllString(d.String(), "$1")
}

// lists maps a command, or a group of commands, to the command that lists valid names for its arguments. BOX is replaced.
var lists = map[string]string{
	"gateway api-key": "gateway api-key list", "gateway secret": "gateway secret list", "gateway snapshot": "gateway snapshot list",
	"gateway policy named": "gateway policy named list", "gateway policy end": "gateway policy leases BOX", "gateway url": "gateway url list BOX",
	"gateway headers": "gateway headers list --box BOX", "gateway policy show": "gateway policy history BOX", "gateway policy diff": "gateway policy history BOX", "gateway box create": "gateway snapshot list",
	"gateway box run": "gateway box runs BOX", "gateway box schedule": "gateway box schedule list BOX", "gateway box skill": "gateway box skill list BOX", "gateway box env": "gateway box env list",
}

// unknownAt maps a pointer to the command that lists the valid names for that field.
var unknownAt = map[string]string{
	"/named": "gateway policy named list", "/network_policy/named": "gateway policy named list", "/snapshot_id": "gateway snapshot list", "/box": "gateway box list",
}

// listFor returns the command that lists the valid names if the gateway rejected an unknown name, or "" for other
// refusals.
func listFor(cmd *cobra.Command, refused *api.ResponseError) string {
	if refused.Status == http.StatusUnprocessableEntity {
		if strings.HasSuffix(refused.Pointer, "/secret") {
			return "gateway secret list"
		}
		return unknownAt[refused.Pointer]
	}
	if refused.Status == http.StatusConflict && cmd.CommandPath() == "gateway api-key create" {
		return "gateway api-key list"
	}
	if refused.Status != http.StatusNotFound {
		return ""
	}
	box := ""
	for _, named := range boxesOf(cmd) {
		if box = named; strings.Contains(refused.Message, strconv.Quote(box)) {
			return "gateway box list"
		}
	}
	path := cmd.CommandPath()
	for at := path; at != ""; at, _, _ = cutLast(at) {
		list, ok := lists[at]
		switch {
		case ok && list == path: // the list itself failed
			return ""
		case ok && box == "":
			return strings.TrimSuffix(strings.TrimSuffix(list, " --box BOX"), " BOX")
		case ok:
			return strings.Replace(list, "BOX", box, 1)
		}
	}
	return ""
}

func cutLast(path string) (before, after string, found bool) {
	i := strings.LastIndexByte(path, ' ')
	if i < 0 {
		return "", path, false
	}
	return path[:i], path[i+1:], true
}

// boxesOf returns the boxes named on the command line.
func boxesOf(cmd *cobra.Command) (boxes []string) {
	if f := cmd.Flags().Lookup("box"); f != nil && f.Changed {
		return []string{f.Value.String()}
	}
	usage := strings.Fields(cmd.Use)[1:]
	usage = slices.DeleteFunc(usage, func(word string) bool { return strings.HasPrefix(word, "[-") || word == "--" })
	args := cmd.Flags().Args()
	for i, word := range usage {
		switch {
		case word == "BOX:PATH":
			for _, arg := range args {
				if box, _, ok := strings.Cut(arg, ":"); ok {
					boxes = append(boxes, box)
				}
			}
			return boxes
		case (word == "BOX..." || word == "BOX[:PATH]" || word == "[BOX[:PATH]]") && i < len(args):
			for _, arg := range args[i:] {
				box, _, _ := strings.Cut(arg, ":") // no name has one
				boxes = append(boxes, box)
			}
			return boxes
		case (word == "BOX" || word == "BOX[@VERSION]") && i < len(args):
			box, _, _ := strings.Cut(args[i], "@") // no name has one
			return []string{box}
		}
	}
	return nil
}
