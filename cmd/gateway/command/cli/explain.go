package cli

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"boxgate/api"
	"boxgate/config"
	"boxgate/policy"
	"boxgate/policy/document"
)

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
	return refused.Message
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
	"gateway headers": "gateway headers list --box BOX", "gateway box create": "gateway snapshot list",
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
		case word == "BOX..." && i < len(args):
			return args[i:]
		case word == "BOX" && i < len(args):
			return args[i : i+1]
		}
	}
	return nil
}
