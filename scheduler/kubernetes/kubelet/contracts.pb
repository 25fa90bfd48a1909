
Ø
device_plugin.protov1beta1"
Empty"
DevicePluginOptions,
pre_start_required (RpreStartRequiredK
"get_preferred_allocation_available (RgetPreferredAllocationAvailable"¤
RegisterRequest
version (	Rversion
endpoint (	Rendpoint#
resource_name (	RresourceName6
options (2.v1beta1.DevicePluginOptionsRoptions"0
Device
ID (	RID
health (	Rhealth"A
ListAndWatchResponse)
devices (2.v1beta1.DeviceRdevices"y
PreferredAllocationRequest[
container_requests (2,.v1beta1.ContainerPreferredAllocationRequestRcontainerRequests"µ
#ContainerPreferredAllocationRequest/
available_deviceIDs (	RavailableDeviceIDs4
must_include_deviceIDs (	RmustIncludeDeviceIDs'
allocation_size (RallocationSize"}
PreferredAllocationResponse^
container_responses (2-.v1beta1.ContainerPreferredAllocationResponseRcontainerResponses"D
$ContainerPreferredAllocationResponse
	deviceIDs (	R	deviceIDs"c
AllocateRequestP
container_requests (2!.v1beta1.ContainerAllocateRequestRcontainerRequests";
ContainerAllocateRequest
devices_ids (	R
devicesIds"g
AllocateResponseS
container_responses (2".v1beta1.ContainerAllocateResponseRcontainerResponses"¹
ContainerAllocateResponse@
envs (2,.v1beta1.ContainerAllocateResponse.EnvsEntryRenvs&
mounts (2.v1beta1.MountRmounts-
devices (2.v1beta1.DeviceSpecRdevicesU
annotations (23.v1beta1.ContainerAllocateResponse.AnnotationsEntryRannotations3
cdi_devices (2.v1beta1.CDIDeviceR
cdiDevices7
	EnvsEntry
key (	Rkey
value (	Rvalue:8>
AnnotationsEntry
key (	Rkey
value (	Rvalue:8"h
Mount%
container_path (	RcontainerPath
	host_path (	RhostPath
	read_only (RreadOnly"r

DeviceSpec%
container_path (	RcontainerPath
	host_path (	RhostPath 
permissions (	Rpermissions"
	CDIDevice
name (	Rname";
PreStartContainerRequest
devices_ids (	R
devicesIds"
PreStartContainerResponse2D
Registration4
Register.v1beta1.RegisterRequest.v1beta1.Empty2™
DevicePluginF
GetDevicePluginOptions.v1beta1.Empty.v1beta1.DevicePluginOptions?
ListAndWatch.v1beta1.Empty.v1beta1.ListAndWatchResponse0c
GetPreferredAllocation#.v1beta1.PreferredAllocationRequest$.v1beta1.PreferredAllocationResponse?
Allocate.v1beta1.AllocateRequest.v1beta1.AllocateResponseZ
PreStartContainer!.v1beta1.PreStartContainerRequest".v1beta1.PreStartContainerResponsebproto3
»
dra_v1.protok8s.io.kubelet.pkg.apis.dra.v1"K
Claim
	namespace (	R	namespace
uid (	Ruid
name (	Rname"\
NodePrepareResourcesRequest=
claims (2%.k8s.io.kubelet.pkg.apis.dra.v1.ClaimRclaims"ø
NodePrepareResourcesResponse`
claims (2H.k8s.io.kubelet.pkg.apis.dra.v1.NodePrepareResourcesResponse.ClaimsEntryRclaimsv
ClaimsEntry
key (	RkeyQ
value (2;.k8s.io.kubelet.pkg.apis.dra.v1.NodePrepareResourceResponseRvalue:8"u
NodePrepareResourceResponse@
devices (2&.k8s.io.kubelet.pkg.apis.dra.v1.DeviceRdevices
error (	Rerror"‘
Device#
request_names (	RrequestNames
	pool_name (	RpoolName
device_name (	R
deviceName$
cdi_device_ids (	RcdiDeviceIds"^
NodeUnprepareResourcesRequest=
claims (2%.k8s.io.kubelet.pkg.apis.dra.v1.ClaimRclaims"þ
NodeUnprepareResourcesResponseb
claims (2J.k8s.io.kubelet.pkg.apis.dra.v1.NodeUnprepareResourcesResponse.ClaimsEntryRclaimsx
ClaimsEntry
key (	RkeyS
value (2=.k8s.io.kubelet.pkg.apis.dra.v1.NodeUnprepareResourceResponseRvalue:8"5
NodeUnprepareResourceResponse
error (	Rerror2¹
	DRAPlugin‘
NodePrepareResources;.k8s.io.kubelet.pkg.apis.dra.v1.NodePrepareResourcesRequest<.k8s.io.kubelet.pkg.apis.dra.v1.NodePrepareResourcesResponse—
NodeUnprepareResources=.k8s.io.kubelet.pkg.apis.dra.v1.NodeUnprepareResourcesRequest>.k8s.io.kubelet.pkg.apis.dra.v1.NodeUnprepareResourcesResponsebproto3
”
pod_resources.protov1"
ListPodResourcesRequest"Q
ListPodResourcesResponse5
pod_resources (2.v1.PodResourcesRpodResources"x
PodResources
name (	Rname
	namespace (	R	namespace6

containers (2.v1.ContainerResourcesR
containers"X
ContainerResources
name (	Rname.
devices (2.v1.ContainerDevicesRdevices"V
ContainerDevices#
resource_name (	RresourceName

device_ids (	R	deviceIds2W
PodResourcesListerA
List.v1.ListPodResourcesRequest.v1.ListPodResourcesResponsebproto3
ˆ
registration.protopluginregistration"
InfoRequest"

PluginInfo
type (	Rtype
name (	Rname
endpoint (	Rendpoint-
supported_versions (	RsupportedVersions"W
RegistrationStatus+
plugin_registered (RpluginRegistered
error (	Rerror"
RegistrationStatusResponse2Î
RegistrationJ
GetInfo.pluginregistration.InfoRequest.pluginregistration.PluginInfor
NotifyRegistrationStatus&.pluginregistration.RegistrationStatus..pluginregistration.RegistrationStatusResponsebproto3