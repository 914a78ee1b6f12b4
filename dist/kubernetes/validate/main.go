// Command validate decodes manifests strictly into the types of Kubernetes and of kubernetes-sigs/agent-sandbox. It is a separate module,
// so that its dependencies are not boxgate's.
//
//	validate FILE...
//
// It prints the configuration of the gateway that a ConfigMap has, and fails with every unknown or misplaced field.
package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	sandboxv1alpha1 "sigs.k8s.io/agent-sandbox/api/v1alpha1"
	"sigs.k8s.io/yaml"
)

func main() {
	var errs []error
	for _, path := range os.Args[1:] {
		if err := validate(path); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", path, err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// validate decodes the documents of a file.
func validate(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	var errs []error
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return errors.Join(errs...)
		}
		if err != nil {
			return err
		}
		errs = append(errs, decode(document))
	}
}

// decode decodes one document.
func decode(document []byte) error {
	var is metav1.TypeMeta
	if err := yaml.Unmarshal(document, &is); err != nil {
		return err
	}
	kind := is.APIVersion + " " + is.Kind
	object, ok := map[string]any{
		"v1 Namespace": &corev1.Namespace{}, "v1 ServiceAccount": &corev1.ServiceAccount{}, "v1 ConfigMap": &corev1.ConfigMap{}, "v1 Secret": &corev1.Secret{},
		"apps/v1 DaemonSet": &appsv1.DaemonSet{}, "node.k8s.io/v1 RuntimeClass": &nodev1.RuntimeClass{}, "agents.x-k8s.io/v1alpha1 Sandbox": &sandboxv1alpha1.Sandbox{},
		"apiextensions.k8s.io/v1 CustomResourceDefinition": &apiextensionsv1.CustomResourceDefinition{},
		"rbac.authorization.k8s.io/v1 ClusterRole":         &rbacv1.ClusterRole{}, "rbac.authorization.k8s.io/v1 ClusterRoleBinding": &rbacv1.ClusterRoleBinding{},
	}[kind]
	if !ok {
		return fmt.Errorf("unknown kind %q", kind)
	}
	if err := yaml.UnmarshalStrict(document, object); err != nil {
		return fmt.Errorf("%s: %w", kind, err)
	}
	switch object := object.(type) {
	case *corev1.ConfigMap:
		fmt.Print(object.Data["boxgate.yaml"])
	case *appsv1.DaemonSet:
		return checkPod(&object.Spec.Template, object.Spec.Selector)
	case *sandboxv1alpha1.Sandbox:
		return checkPod(&corev1.PodTemplateSpec{Spec: object.Spec.PodTemplate.Spec}, nil)
	}
	return nil
}

// checkPod checks the references within a pod, which its types do not.
func checkPod(pod *corev1.PodTemplateSpec, selector *metav1.LabelSelector) error {
	var errs []error
	if selector != nil {
		for key, value := range selector.MatchLabels {
			if pod.Labels[key] != value {
				errs = append(errs, fmt.Errorf("the selector %s=%s does not match the pod", key, value))
			}
		}
	}
	for _, container := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		paths := map[string]bool{}
		for _, mount := range container.VolumeMounts {
			if !slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == mount.Name }) {
				errs = append(errs, fmt.Errorf("container %s mounts the unknown volume %s", container.Name, mount.Name))
			}
			if paths[mount.MountPath] {
				errs = append(errs, fmt.Errorf("container %s mounts two volumes at %s", container.Name, mount.MountPath))
			}
			paths[mount.MountPath] = true
		}
		for name, quantity := range container.Resources.Requests {
			if quantity.Cmp(resource.MustParse("0")) <= 0 {
				errs = append(errs, fmt.Errorf("container %s requests no %s", container.Name, name))
			}
		}
	}
	return errors.Join(errs...)
}
