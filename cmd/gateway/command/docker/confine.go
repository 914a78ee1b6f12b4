package docker

import "fmt"

// The checks of `gateway docker run`, exported for `gateway oci`. Each returns an error if the container could bypass the gateway.

// CheckCapability checks a capability, with or without CAP_.
func CheckCapability(name string) error {
	if err := checkCapability(name); err != nil {
		return fmt.Errorf("the capability %.100q: %w", name, err)
	}
	return nil
}

// CheckDevice checks a device by its path on the host.
func CheckDevice(path string) error {
	if err := checkDevice(path); err != nil {
		return fmt.Errorf("the device %.200q: %w", path, err)
	}
	return nil
}

// CheckBind checks a file or directory of the host that is bind mounted with options of mount(8). sockets are the gateway's own
// sockets and files, which must stay out of reach.
func CheckBind(source string, options []string, sockets ...string) error {
	err := checkSource(source)
	for _, option := range options {
		if err == nil {
			err = checkPropagation(option)
		}
	}
	if err != nil {
		return fmt.Errorf("the mount of %.200q: %w", source, err)
	}
	if socket := exposedSocket(source, append(controlSockets(), sockets...)); socket != "" {
		return fmt.Errorf("the mount of %.200q: a container that reaches %s can leave the gateway", source, socket)
	}
	return nil
}
