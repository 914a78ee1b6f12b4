package command

import (
	"errors"
	"fmt"
	"io"

	"boxgate/api"

	"github.com/spf13/cobra"
)

// newBoxAttach is `gateway box attach`.
func newBoxAttach(o *globalOptions) *cobra.Command {
	var netns, container, name, policy, headers, stack string
	var pid int
	cmd := &cobra.Command{
		Use:   "attach (--netns PATH | --pid PID | --container ID)",
		Short: "Attach an existing sandbox to the gateway and print it",
		Args:  exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			body := map[string]any{}
			for key, value := range map[string]string{"netns": netns, "container": container, "name": name} {
				if value != "" {
					body[key] = value
				}
			}
			if pid != 0 {
				body["pid"] = pid
			}
			if len(body) == 0 || name != "" && len(body) == 1 {
				return usageError{errors.New("say what to attach: --netns, --pid or --container")}
			}
			if stack != "" {
				body["stack"] = stack
			}
			if policy != "" {
				data, err := argument(policy, cmd.InOrStdin())
				if err != nil {
					return fmt.Errorf("--policy: %w", err)
				}
				body["network_policy"] = data
			}
			if headers != "" {
				data, err := document(headers, cmd.InOrStdin())
				if err != nil {
					return fmt.Errorf("--headers: %w", err)
				}
				body["attach_headers"] = data
			}
			return o.call(cmd, "POST", "/v2/box/attach", body, decoded(func(w io.Writer, b boxAnswer) error {
				warningsOf(cmd, b.Warnings)
				return table(w, boxHeading, b.row())
			}))
		},
	}
	f := cmd.Flags()
	f.StringVar(&netns, "netns", "", "path of its network namespace, such as /run/netns/NAME")
	f.IntVar(&pid, "pid", 0, "a process in its network namespace")
	f.StringVar(&container, "container", "", "ID or name of a Docker container, started with --network none")
	f.StringVar(&stack, "stack", "", "whose network stack uses the interface: host (default), or guest for gVisor and virtual machines")
	f.StringVar(&name, "name", "", "a name of your choice")
	f.StringVar(&policy, "policy", "", "network policy: JSON, @FILE, -, allow-all or deny-all (default: allow-all)")
	f.StringVar(&headers, "headers", "", `header rules as for "gateway headers set": JSON or YAML, @FILE or -`)
	return cmd
}

// newBoxDetach is `gateway box detach`.
func newBoxDetach(o *globalOptions) *cobra.Command {
	return &cobra.Command{
		Use: "detach BOX...", Short: "Take attached boxes off the network and forget them", Args: minArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, box := range args {
				if err := o.call(cmd, "POST", api.BoxPath(box, "detach"), nil, silent); err != nil {
					return fmt.Errorf("%s: %w", box, err)
				}
			}
			return nil
		},
	}
}
