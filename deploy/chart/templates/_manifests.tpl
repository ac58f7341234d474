{{- /*
The objects are the manifests of deploy/, which are in files/: nothing is written twice.
What differs from one installation to another is set on top of them.
*/ -}}

{{- /* A manifest with the release's namespace. */ -}}
{{- define "manifest" -}}
{{- $text := .root.Files.Get .file | required (printf "%s is missing" .file) -}}
{{- $text | trimPrefix "---\n" | replace "csi-addons-node-healer" .root.Release.Namespace -}}
{{- end }}

{{- /* A DaemonSet with the values of one of the two programs. */ -}}
{{- define "daemonset" -}}
{{- $v := .values -}}
{{- $set := include "manifest" . | replace "/var/lib/kubelet" .root.Values.server.kubeletRoot | fromYaml -}}
{{- $_ := set $set.spec.updateStrategy.rollingUpdate "maxUnavailable" $v.maxUnavailable -}}
{{- $pod := $set.spec.template.spec -}}
{{- range $key := list "nodeSelector" "tolerations" "priorityClassName" -}}
{{- $_ := set $pod $key (get $v $key) -}}
{{- end -}}
{{- with .root.Values.imagePullSecrets }}{{ $_ := set $pod "imagePullSecrets" . }}{{ end -}}
{{- with $v.seLinuxOptions }}{{ $_ := set $pod.securityContext "seLinuxOptions" . }}{{ end -}}
{{- $container := first $pod.containers -}}
{{- $image := .root.Values.image -}}
{{- $_ := set $container "image" (printf "%s:%s" $image.repository ($image.tag | default .root.Chart.AppVersion)) -}}
{{- $_ := set $container "imagePullPolicy" $image.pullPolicy -}}
{{- $_ := set $container "resources" $v.resources -}}
{{- $args := list -}}
{{- range $container.args -}}
{{- if hasPrefix "-v=" . -}}
{{- $args = append $args (printf "-v=%v" $v.verbosity) -}}
{{- else if hasPrefix "--loop=" . -}}
{{- $args = append $args (printf "--loop=%s" $v.loop) -}}
{{- else -}}
{{- $args = append $args . -}}
{{- end -}}
{{- end -}}
{{- $_ := set $container "args" (concat $args $v.extraArgs) -}}
{{- toYaml $set -}}
{{- end }}
