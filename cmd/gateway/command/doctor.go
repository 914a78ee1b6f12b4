package command

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"boxgate/api"
	"boxgate/cmd/gateway/command/cli"
	"boxgate/doctor"
	"boxgate/doctor/probe"
	hostdoctor "boxgate/host/doctor"
)

const doctorHelp = `Opens a host from the gateway's own network, and from two temporary boxes: spliced, and intercepted with the options that the
rule of the box has for the host. Prints what differs, why, and what to set. Each way makes one GET with two clients: a strict one
(HTTP/2 if the server has it), and a lenient one (HTTP/1.1, old TLS, malformed responses).

Exits with 0 if the host works intercepted as it does directly, and with 1 if not, or if the gateway's host does not reach it.`

// newDoctorCommand is `gateway doctor`.
func newDoctorCommand(o *cli.Options) *cobra.Command {
	var path string
	var idle time.Duration
	cmd := &cobra.Command{
		Use:   "doctor BOX HOST[:PORT]",
		Short: "Explain why a host works or fails directly, spliced and intercepted, and what to set",
		Long:  doctorHelp,
		Args:  cli.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			body, err := doctorBody(args[1], path, idle)
			if err != nil {
				return err
			}
			client, err := o.Client()
			if err != nil {
				return err
			}
			var answer json.RawMessage
			if err := client.Do(cmd.Context(), "POST", api.BoxPath(args[0], "doctor"), body, &answer); err != nil {
				return err
			}
			err = o.Show(cmd, answer, cli.Decoded(func(w io.Writer, answer doctor.Diagnosis) error {
				return printDiagnosis(w, args[0], answer)
			}))
			if err != nil {
				return err
			}
			var d doctor.Diagnosis
			if err := json.Unmarshal(answer, &d); err != nil {
				return fmt.Errorf("cannot parse the gateway's answer: %w", err)
			}
			return diagnosisError(args[1], d.Verdict, o.JSON)
		},
	}
	cli.MapFields(cmd, map[string]string{"/host": "HOST[:PORT]", "/port": "HOST[:PORT]", "/path": "--path", "/idle_seconds": "--idle"})
	cmd.Flags().StringVar(&path, "path", "/", "path of the GET")
	cli.Duration(cmd.Flags(), &idle, "idle", 3*time.Second, "how long to watch an idle connection, at most 10s")
	return cmd
}

// diagnosisError returns the error for a host that works less well through the gateway, or not at all. JSON has the verdict, and
// gets the exit status alone.
func diagnosisError(host string, v doctor.Verdict, asJSON bool) error {
	switch {
	case v != doctor.Worse && v != doctor.Unreachable:
		return nil
	case asJSON:
		return cli.CommandExit{Status: cli.ExitFailed}
	case v == doctor.Unreachable:
		return fmt.Errorf("the host of the gateway does not reach %s", host)
	}
	return fmt.Errorf("%s does not work when intercepted as it does directly", host)
}

// doctorBody returns the request for a destination.
func doctorBody(to, path string, idle time.Duration) (map[string]any, error) {
	body := map[string]any{"host": to, "path": path, "idle_seconds": int64(idle.Round(time.Second) / time.Second)}
	host, port, err := net.SplitHostPort(to)
	if err != nil || strings.Contains(to, "://") {
		return body, nil // no port, or the gateway refuses it
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil || number == 0 {
		return nil, cli.Usagef("%q is not a port: a number from 1 to 65535", port)
	}
	body["host"], body["port"] = host, number
	return body, nil
}

// newDoctorProbeCommand is the process started by a diagnosis. It reads a plan and has no access to secrets.
func newDoctorProbeCommand() *cobra.Command {
	return &cobra.Command{
		Use:    hostdoctor.ProbeCommand,
		Short:  "Ask a server for a diagnosis (started by the gateway)",
		Args:   cli.ExactArgs(0),
		Hidden: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return probe.Serve(cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
}

// printDiagnosis prints the ways side by side, the findings, and what to do. Texts of the server are already escaped.
func printDiagnosis(w io.Writer, box string, d doctor.Diagnosis) error {
	if err := cli.Table(w, diagnosisRows(d)...); err != nil {
		return err
	}
	var out strings.Builder
	state := "spliced"
	if d.Now.Intercepted {
		state = "intercepted"
	}
	if d.Now.Verdict != "allow" {
		state = "denied (" + d.Now.Reason + ")"
	}
	if d.Inside != nil {
		state += "; curl in it: " + resultText(*d.Inside)
	}
	fmt.Fprintf(&out, "\nnow, box %s: %s\n", box, state)
	for _, r := range d.Refused {
		if r.Address.IsValid() {
			fmt.Fprintf(&out, "not tried: %s (%s)\n", r.Address, r.Reason)
		} else {
			fmt.Fprintf(&out, "not looked up: %s\n", r.Reason)
		}
	}
	for _, way := range d.Ways {
		for _, c := range way.Clients {
			if _, detail, ok := strings.Cut(c.Refusal, ": "); ok {
				fmt.Fprintf(&out, "refused, %s, %s: %s\n", way.Name, c.Name, detail)
			}
		}
	}
	if len(d.Findings) == 0 {
		out.WriteString("no difference\n")
	}
	for _, f := range d.Findings {
		fmt.Fprintf(&out, "%s: %s\n", f.ID, f.What)
		if f.Remedy != "" {
			fmt.Fprintf(&out, "    %s\n", f.Remedy)
		}
	}
	for _, a := range d.Advice {
		fmt.Fprintf(&out, "-> %s\n", a)
	}
	out.WriteString("not seen:\n")
	for _, n := range d.NotSeen {
		fmt.Fprintf(&out, "    %s: %s\n", n.ID, n.What)
	}
	_, err := io.WriteString(w, out.String())
	return err
}

// diagnosisRows returns a column for each way.
func diagnosisRows(d doctor.Diagnosis) [][]string {
	rows := [][]string{{""}}
	cell := func(of func(doctor.Way) string) (row []string) {
		for _, way := range d.Ways {
			row = append(row, of(way))
		}
		return row
	}
	add := func(name string, row []string) {
		if strings.Join(row, "") != "" {
			rows = append(rows, append([]string{name}, row...))
		}
	}
	rows[0] = append(rows[0], cell(func(w doctor.Way) string { return strings.ToUpper(w.Name) })...)
	add("works", cell(func(w doctor.Way) string { return map[bool]string{true: "yes", false: "NO"}[w.Works] }))
	most := 0
	for _, w := range d.Ways {
		most = max(most, len(w.Attempts))
	}
	for i := range most {
		add("address", cell(func(w doctor.Way) string { return attemptText(w, i) }))
	}
	for i, name := range []string{probe.Strict, probe.Lenient} {
		of := func(w doctor.Way) doctor.Client {
			for _, c := range w.Clients {
				if c.Name == name {
					return c
				}
			}
			return doctor.Client{}
		}
		add(name, cell(func(w doctor.Way) string { return resultText(of(w)) }))
		add("  tls", cell(func(w doctor.Way) string { return of(w).TLS }))
		add("  alpn", cell(func(w doctor.Way) string { return of(w).ALPN }))
		if i == 1 {
			add("  framing", cell(func(w doctor.Way) string { return of(w).Framing }))
		}
	}
	add("offer", cell(func(w doctor.Way) string { return w.Offer }))
	add("certificate", cell(func(w doctor.Way) string { return w.Subject }))
	add("idle", cell(func(w doctor.Way) string { return w.Idle }))
	return rows
}

func attemptText(w doctor.Way, i int) string {
	if i >= len(w.Attempts) {
		return ""
	}
	a := w.Attempts[i]
	if a.Error == "" {
		return a.Address
	}
	return a.Address + " " + a.Error
}

// resultText returns the result of a client.
func resultText(c doctor.Client) string {
	switch {
	case c.Refusal != "":
		reason, _, _ := strings.Cut(c.Refusal, ":")
		return "refused: " + reason
	case c.Error != "":
		return "fails: " + c.Error
	case c.Status == 0:
		return ""
	}
	return fmt.Sprintf("%s %d, %d bytes", c.Proto, c.Status, c.Bytes)
}
