package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"boxgate/api"
	"boxgate/firewall/network"
)

// annotationPrefix begins the name of every annotation for the gateway. A pod with any of them is the gateway's, so that one with a
// misspelt annotation is refused instead of left alone.
const annotationPrefix = "boxgate.dev/"

// The annotations that a pod can have. The values are bounded by attach.cni.
const (
	policyAnnotation  = annotationPrefix + "policy"
	headersAnnotation = annotationPrefix + "headers"
	labelsAnnotation  = annotationPrefix + "labels"
	stackAnnotation   = annotationPrefix + "stack" // host or guest
)

// The values of pods in the configuration of the plugin.
const (
	podsAnnotated = "annotated"
	podsAll       = "all"
)

// netConf is the configuration of the plugin in a CNI network, with what the runtime adds.
type netConf struct {
	types.PluginConf
	Config     string   `json:"config"`     // the gateway's configuration file
	Admin      string   `json:"admin"`      // its admin socket, if not as configured
	StateDir   string   `json:"stateDir"`   // for what DEL must know
	Pods       string   `json:"pods"`       // which pods are the gateway's
	Namespaces []string `json:"namespaces"` // all pods of these Kubernetes namespaces, too

	RuntimeConfig struct {
		Annotations map[string]string `json:"io.kubernetes.cri.pod-annotations"`
		DNS         struct {
			Searches []string
		} `json:"dns"`
	} `json:"runtimeConfig"`
}

// request is one call of the plugin for one attachment.
type request struct {
	conf      netConf
	prev      *types100.Result // nil: the plugin is the first
	container string
	ifname    string
	netns     string
	pod       pod
}

// pod is the pod as CNI_ARGS and annotations describe it. All of it is text of whoever made the pod.
type pod struct {
	namespace, name string
	annotations     map[string]string // only the gateway's
}

// The bounds of what a runtime passes.
const (
	maxConfig = 1 << 20 // Kubernetes allows 256 KiB of annotations
	maxArgs   = 16 << 10
)

// readConf parses the configuration of the plugin.
func readConf(data []byte) (conf netConf, err error) {
	if len(data) > maxConfig {
		return conf, types.NewError(types.ErrInvalidNetworkConfig, fmt.Sprintf("the configuration is larger than %d bytes", maxConfig), "")
	}
	if err := json.Unmarshal(data, &conf); err != nil {
		return conf, types.NewError(types.ErrDecodingFailure, "the configuration cannot be read: "+err.Error(), "")
	}
	switch conf.Pods {
	case "", podsAnnotated, podsAll:
	default:
		return conf, types.NewError(types.ErrInvalidNetworkConfig, fmt.Sprintf("pods is %q; use %s or %s", conf.Pods, podsAnnotated, podsAll), "")
	}
	return conf, nil
}

// readRequest parses a call. strict: mistakes in CNI_ARGS are errors; otherwise, for calls that must succeed for any pod, they are
// skipped.
func readRequest(args *skel.CmdArgs, strict bool) (*request, error) {
	conf, err := readConf(args.StdinData)
	if err != nil {
		return nil, err
	}
	r := &request{conf: conf, container: args.ContainerID, ifname: args.IfName, netns: args.Netns}
	if conf.RawPrevResult != nil {
		if err := version.ParsePrevResult(&r.conf.PluginConf); err != nil {
			return nil, types.NewError(types.ErrDecodingFailure, "prevResult cannot be read: "+err.Error(), "")
		}
		if r.prev, err = types100.NewResultFromResult(r.conf.PrevResult); err != nil {
			return nil, types.NewError(types.ErrDecodingFailure, "prevResult cannot be read: "+err.Error(), "")
		}
	}
	values, err := parseArgs(args.Args)
	if err != nil && strict {
		return nil, types.NewError(types.ErrInvalidEnvironmentVariables, "CNI_ARGS: "+err.Error(), "")
	}
	r.pod = pod{namespace: values["K8S_POD_NAMESPACE"], name: values["K8S_POD_NAME"], annotations: map[string]string{}}
	for key, value := range conf.RuntimeConfig.Annotations {
		if strings.HasPrefix(key, annotationPrefix) {
			r.pod.annotations[key] = value
		}
	}
	return r, nil
}

// parseArgs parses CNI_ARGS: KEY=VALUE pairs separated by semicolons. A key that is given twice is an error, because runtimes differ in
// which one applies. With an error, the pairs before the mistake are returned.
func parseArgs(text string) (map[string]string, error) {
	values := map[string]string{}
	if len(text) > maxArgs {
		return values, fmt.Errorf("longer than %d bytes", maxArgs)
	}
	if text == "" {
		return values, nil
	}
	for pair := range strings.SplitSeq(text, ";") {
		key, value, ok := strings.Cut(pair, "=")
		switch _, twice := values[key]; {
		case !ok || key == "":
			return values, fmt.Errorf("%q is not KEY=VALUE", pair)
		case twice:
			return values, fmt.Errorf("%q is given twice", key)
		case strings.ContainsFunc(pair, func(r rune) bool { return r < ' ' || r == 0x7f }):
			return values, fmt.Errorf("%q has control characters", key)
		}
		values[key] = value
	}
	return values, nil
}

// ref returns the reference of the attachment.
func (r *request) ref() string { return api.CNIRef(r.conf.Name, r.container, r.ifname) }

// selected reports whether the pod is the gateway's. A pod whose namespace the runtime does not tell is an error if that decides.
func (r *request) selected() (bool, error) {
	switch {
	case r.conf.Pods == podsAll, len(r.pod.annotations) > 0:
		return true, nil
	case r.pod.namespace == "" && len(r.conf.Namespaces) > 0:
		return false, errors.New("the runtime does not tell the namespace of the pod (K8S_POD_NAMESPACE in CNI_ARGS), which decides whether it is the gateway's")
	}
	return slices.Contains(r.conf.Namespaces, r.pod.namespace), nil
}

// attached reports whether the result of ADD has a link of the gateway.
func (r *request) attached() bool {
	return r.prev != nil && slices.ContainsFunc(r.prev.Interfaces, func(i *types100.Interface) bool {
		return i != nil && i.Sandbox == "" && strings.HasPrefix(i.Name, network.LinkPrefix) && len(i.Name) == len(network.LinkPrefix)+12
	})
}

// checkAnnotations refuses annotations with a wrong name or value. Policies are checked against the configuration.
func (p *pod) checkAnnotations() error {
	for _, key := range slices.Sorted(maps.Keys(p.annotations)) {
		switch value := p.annotations[key]; key {
		case policyAnnotation, headersAnnotation, labelsAnnotation:
		case stackAnnotation:
			if value != api.StackHost && value != api.StackGuest {
				return fmt.Errorf("annotation %s is %q; use %s or %s", key, value, api.StackHost, api.StackGuest)
			}
		default:
			return fmt.Errorf("unknown annotation %q; there are %s, %s, %s and %s", key, policyAnnotation, headersAnnotation, labelsAnnotation, stackAnnotation)
		}
	}
	return nil
}
