{{/* The name of everything in this release. */}}
{{- define "warm-engine.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 52 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 52 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "warm-engine.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "warm-engine.labels" -}}
{{ include "warm-engine.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "warm-engine.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (include "warm-engine.name" .) }}
{{- end }}

{{/* What is particular to the chosen GPU type, as YAML. */}}
{{- define "warm-engine.gpu" -}}
{{- $gpu := index .Values.gpuTypes .Values.gpuType -}}
{{- if not $gpu }}{{ fail (printf "gpuType %s is none of gpuTypes: %s" .Values.gpuType (keys .Values.gpuTypes | sortAlpha | join ", ")) }}{{ end -}}
{{ toYaml $gpu }}
{{- end }}

{{/* Whether the sidecar talks to the API server. */}}
{{- define "warm-engine.token" -}}
{{- if or .Values.sidecar.readinessGate .Values.sidecar.events }}yes{{ end }}
{{- end }}

{{- define "warm-engine.storeReadOnly" -}}
{{- if or .Values.store.readOnly .Values.store.trustedKeys (eq .Values.store.kind "bucket") }}yes{{ end }}
{{- end }}

{{/* A duration that the sidecar goes by: its setting, else the default. */}}
{{- define "warm-engine.seconds" -}}
{{- index .root.Values.sidecar.settings .name | default .default | float64 | ceil | int }}
{{- end }}

{{/* Launcher wait, restore and cold compile; see the comments of k8s/base/deployment.yaml. */}}
{{- define "warm-engine.engineStart" -}}
{{- $restore := include "warm-engine.seconds" (dict "root" . "name" "restore_timeout_s" "default" "60") | int -}}
{{- $single := include "warm-engine.seconds" (dict "root" . "name" "single_flight_s" "default" "0") | int -}}
{{- add 5 10 $restore $single 15 .Values.engine.coldStartSeconds }}
{{- end }}

{{/* failureThreshold of the engine's startup probe, which asks every 5 s. */}}
{{- define "warm-engine.engineAttempts" -}}
{{- div (add (include "warm-engine.engineStart" . | int) 4) 5 }}
{{- end }}

{{/* Images and scheduling 900 s, sidecar 60 s, engine, warm-up, one last request. */}}
{{- define "warm-engine.progressDeadline" -}}
{{- $warm := include "warm-engine.seconds" (dict "root" . "name" "warm_budget_s" "default" "1800") | int -}}
{{- $request := include "warm-engine.seconds" (dict "root" . "name" "request_timeout_s" "default" "900") | int -}}
{{- max 6000 (add 960 (mul 5 (include "warm-engine.engineAttempts" . | int)) $warm $request) }}
{{- end }}

{{/* Drain, 30 s for the engine's end, 2 s for the sidecar's, up to the next ten seconds. */}}
{{- define "warm-engine.gracePeriod" -}}
{{- $drain := include "warm-engine.seconds" (dict "root" . "name" "drain_s" "default" "25") | int -}}
{{- mul 10 (div (add $drain 32 9) 10) }}
{{- end }}

{{- define "warm-engine.rights" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 2000
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{/* The sidecar's container; sidecar/kube/injection/shape.py is where each number comes from. */}}
{{- define "warm-engine.sidecar" -}}
- name: warmup-sidecar
  image: {{ .Values.sidecar.image }}
  {{- if .Values.sidecar.native }}
  restartPolicy: Always
  {{- end }}
  args: [run]
  env:
    - name: WARMUP_ENGINE_URL
      value: http://127.0.0.1:{{ .Values.engine.port }}
    - name: WARMUP_LISTEN
      value: 0.0.0.0:{{ .Values.sidecar.port }}
    - name: WARMUP_CONTROL_DIR
      value: /run/warmup
    - name: WARMUP_LIVE_CACHE
      value: /var/cache/engine
    - name: WARMUP_LIVE_CACHE_LIMIT_BYTES
      value: {{ .Values.sidecar.liveCacheSize | quote }}
    {{- if ne .Values.store.kind "none" }}
    - name: WARMUP_STORE
      value: {{ ternary .Values.store.url "/mnt/store" (eq .Values.store.kind "url") }}
    {{- end }}
    {{- if .Values.store.packCache.path }}
    - name: WARMUP_PACK_CACHE
      value: /mnt/packs
    - name: WARMUP_PACK_CACHE_LIMIT_BYTES
      value: {{ .Values.store.packCache.limit | quote }}
    {{- end }}
    {{- if include "warm-engine.storeReadOnly" . }}
    - name: WARMUP_STORE_MODE
      value: read-only
    {{- end }}
    {{- if .Values.store.trustedKeys }}
    - name: WARMUP_TRUSTED_KEYS_FILE
      value: /run/warmup-trusted-keys/trusted-keys
    {{- end }}
    {{- if .Values.engine.apiKey.secretName }}
    - name: WARMUP_API_KEY_FILE
      value: /run/secrets/warmup-api-key/api-key
    {{- end }}
    {{- with .Values.sidecar.golden }}
    {{- if .configMap }}
    - name: WARMUP_GOLDEN
      value: /etc/warmup/golden{{ with .key }}/{{ . }}{{ end }}
    {{- end }}
    {{- end }}
    {{- with .Values.sidecar.fallbacks }}
    - name: WARMUP_FALLBACKS
      value: {{ join "; " . | quote }}
    {{- if not $.Values.sidecar.settings.on_golden_failed }}
    - name: WARMUP_ON_GOLDEN_FAILED
      value: retry-cold,fallback,hold
    {{- end }}
    {{- end }}
    {{- if .Values.sidecar.readinessGate }}
    - name: WARMUP_READINESS_GATE
      value: "true"
    {{- end }}
    {{- if .Values.sidecar.events }}
    - name: WARMUP_EVENTS
      value: "true"
    {{- end }}
    {{- range $name, $value := .Values.sidecar.settings }}
    {{- if and (eq $name "group_startup") (eq (lower $value) "leaderready") }}{{ fail "sidecar.settings.group_startup is leaderready: the workers are created when the leader is ready, and it is ready when the engine that needs them is warm. Neither ever is." }}{{ end }}
    - name: WARMUP_{{ upper $name }}
      value: {{ $value | quote }}
    {{- end }}
    {{- if include "warm-engine.token" . }}
    - name: WARMUP_POD_NAME
      valueFrom:
        fieldRef:
          apiVersion: v1
          fieldPath: metadata.name
    {{- end }}
  {{- if and (eq .Values.store.kind "url") .Values.store.credentialsSecret }}
  envFrom:
    - secretRef:
        name: {{ .Values.store.credentialsSecret }}
        # A Secret that is missing must not keep the engine from starting; the sidecar says that there are no credentials.
        optional: true
  {{- end }}
  ports:
    - name: warmup
      containerPort: {{ .Values.sidecar.port }}
  {{- if .Values.sidecar.native }}
  startupProbe:
    httpGet: {path: /startupz, port: warmup}
    periodSeconds: 1
    timeoutSeconds: 1
    failureThreshold: 60
  {{- end }}
  readinessProbe:
    httpGet: {path: /readyz, port: warmup}
    periodSeconds: 1
    timeoutSeconds: 2
    failureThreshold: 1
  livenessProbe:
    httpGet: {path: /livez, port: warmup}
    periodSeconds: 10
    timeoutSeconds: 5
    failureThreshold: 3
  resources: {{- toYaml .Values.sidecar.resources | nindent 4 }}
  securityContext: {{- include "warm-engine.rights" . | nindent 4 }}
  volumeMounts:
    - name: control
      mountPath: /run/warmup
    - name: live-cache
      mountPath: /var/cache/engine
    {{- if .Values.store.trustedKeys }}
    - name: trusted-keys
      mountPath: /run/warmup-trusted-keys
      readOnly: true
    {{- end }}
    {{- if .Values.store.packCache.path }}
    - name: packs
      mountPath: /mnt/packs
    {{- end }}
    {{- if not (has .Values.store.kind (list "none" "url")) }}
    - name: store
      mountPath: /mnt/store
      {{- if include "warm-engine.storeReadOnly" . }}
      readOnly: true
      {{- end }}
    {{- end }}
    {{- if .Values.engine.apiKey.secretName }}
    - name: api-key
      mountPath: /run/secrets/warmup-api-key
      readOnly: true
    {{- end }}
    {{- if .Values.sidecar.golden.configMap }}
    - name: golden
      mountPath: /etc/warmup/golden
      readOnly: true
    {{- end }}
    {{- if include "warm-engine.token" . }}
    - name: token
      mountPath: /var/run/secrets/kubernetes.io/serviceaccount
      readOnly: true
    {{- end }}
{{- end }}

{{/* The engine's container. */}}
{{- define "warm-engine.engine" -}}
{{- $gpu := include "warm-engine.gpu" . | fromYaml -}}
{{- $quantization := .Values.engine.quantization | default ($gpu.quantization | default "") -}}
{{- $dtype := .Values.engine.kvCacheDtype | default ($gpu.kvCacheDtype | default "") -}}
{{- $env := merge (dict) .Values.engine.env ($gpu.env | default dict) -}}
- name: engine
  image: {{ .Values.engine.image | default $gpu.image }}
  command: [python3, /run/warmup/launcher.py, --]
  args:
    - vllm
    - serve
    - {{ .Values.engine.model | default $gpu.model | quote }}
    - --port={{ .Values.engine.port }}
    {{- if $quantization }}
    - --quantization={{ $quantization }}
    {{- end }}
    {{- if $dtype }}
    - --kv-cache-dtype={{ $dtype }}
    {{- end }}
    {{- range concat ($gpu.args | default list) .Values.engine.args }}
    - {{ . | quote }}
    {{- end }}
  env:
    - name: HF_HOME
      value: /weights
    {{- if not .Values.sidecar.native }}
    - name: WARMUP_LAUNCHER_GRACE_S
      value: "60"
    {{- end }}
    {{- range $name, $value := $env }}
    - name: {{ $name }}
      value: {{ $value | quote }}
    {{- end }}
    {{- if .Values.engine.apiKey.secretName }}
    - name: VLLM_API_KEY
      valueFrom:
        secretKeyRef:
          name: {{ .Values.engine.apiKey.secretName }}
          key: {{ .Values.engine.apiKey.key }}
    {{- end }}
  ports:
    - name: engine
      containerPort: {{ .Values.engine.port }}
  startupProbe:
    httpGet: {path: /health, port: engine}
    periodSeconds: 5
    timeoutSeconds: 5
    failureThreshold: {{ include "warm-engine.engineAttempts" . }}
  resources: {{- toYaml ($gpu.resources | default dict) | nindent 4 }}
  securityContext:
    allowPrivilegeEscalation: false
    capabilities:
      drop: [ALL]
    seccompProfile:
      type: RuntimeDefault
  volumeMounts:
    - name: control
      mountPath: /run/warmup
    - name: live-cache
      mountPath: /var/cache/engine
    - name: weights
      mountPath: /weights
    - name: shared-memory
      mountPath: /dev/shm
{{- end }}
