// Queues, offloads and header size are set by ioctls on the tap's descriptors, wherever the interface lies. What is set by
// the interface's name (MTU, up, bridge) needs a socket in its network namespace; a descriptor that we were given may come
// from another one.
#include "backend/net/tap_device.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/ethtool.h>
#include <linux/if_tun.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <spdlog/spdlog.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "base/check.hpp"
#include "base/limits.hpp"
#include "ring/spec.hpp"

namespace ringway {
namespace {

// Linux 6.2; not in the headers that we build with.
constexpr std::uint32_t kTunUso4 = 0x20;
constexpr std::uint32_t kTunUso6 = 0x40;
#ifdef TUN_F_USO4
static_assert(kTunUso4 == TUN_F_USO4 && kTunUso6 == TUN_F_USO6);
#endif

constexpr const char* kTunPath = "/dev/net/tun";
constexpr int kTapFlags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR;

int control(int fd, unsigned long request, void* argument) noexcept {
  return ::ioctl(fd, request, argument) < 0 ? errno : 0;
}
int control_value(int fd, unsigned long request, int value) noexcept {
  return control(fd, request, &value);
}
int set_offloads(int fd, std::uint32_t tun_offloads) noexcept {
  return ::ioctl(fd, TUNSETOFFLOAD, static_cast<unsigned long>(tun_offloads)) < 0 ? errno : 0;
}

ifreq request_for(std::string_view name) noexcept {
  ifreq request{};
  std::memcpy(request.ifr_name, name.data(), std::min<std::size_t>(name.size(), IFNAMSIZ - 1));
  return request;
}

std::string how_to_prepare(std::string_view name, std::uint32_t pairs) {
  return fmt::format("ip tuntap add dev {} mode tap user {}{}", name, ::geteuid(), pairs > 1 ? " multi_queue" : "");
}

Result<> check_name(std::string_view name) {
  if (name.empty()) {
    return fail("a tap needs the name of its interface, or descriptors of its queues");
  }
  if (name.size() >= IFNAMSIZ) {
    return fail(fmt::format("'{}' is too long for the name of an interface: it may have {} bytes", name, IFNAMSIZ - 1));
  }
  const bool bad =
      std::ranges::any_of(name, [](char c) { return c <= ' ' || c == '/' || c == ':' || c == '%' || c == 0x7f; });
  if (bad || name == "." || name == "..") {
    return fail(fmt::format("'{}' can't be the name of an interface: no spaces, '/', ':' or '%'", name));
  }
  return {};
}

// --- By the interface's name ---

Result<UniqueFd> open_socket() {
  UniqueFd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket) {
    return fail_errno(errno, "can't open a socket to ask for the state of an interface");
  }
  return socket;
}

// "tap", "tun" or none, where the interface is of another kind.
std::string kind_of(int socket, std::string_view name) {
  ethtool_drvinfo info{};
  info.cmd = ETHTOOL_GDRVINFO;
  ifreq request = request_for(name);
  request.ifr_data = reinterpret_cast<char*>(&info);
  if (control(socket, SIOCETHTOOL, &request) != 0 || std::string_view(info.driver) != "tun") {
    return {};
  }
  return info.bus_info;
}

// Whether `name` in this thread's namespace is the interface that `queue` belongs to.
bool is_here(int socket, int queue, std::string_view name) noexcept {
  ifreq here = request_for(name);
  ifreq there{};
  return control(socket, SIOCGIFHWADDR, &here) == 0 && control(queue, SIOCGIFHWADDR, &there) == 0 &&
         std::memcmp(here.ifr_hwaddr.sa_data, there.ifr_hwaddr.sa_data, spec::kMacBytes) == 0;
}

Result<std::string> current_name(int queue, std::string_view name) {
  ifreq request{};
  if (const int error = control(queue, TUNGETIFF, &request); error != 0) {
    return fail_errno(error, fmt::format("the interface {} has gone", name));
  }
  return std::string(request.ifr_name);
}

Result<> bring_up(int socket, std::string_view name) {
  ifreq request = request_for(name);
  int error = control(socket, SIOCGIFFLAGS, &request);
  if (error == 0) {
    request.ifr_flags = static_cast<short>(request.ifr_flags | IFF_UP);
    error = control(socket, SIOCSIFFLAGS, &request);
  }
  if (error != 0) {
    return fail_errno(error, fmt::format("can't set the interface {} up", name));
  }
  return {};
}

std::string master_of(std::string_view name) {
  std::error_code none;
  return std::filesystem::read_symlink(fmt::format("/sys/class/net/{}/master", name), none).filename().string();
}

Result<> join_bridge(int socket, std::string_view name, const std::string& bridge) {
  RW_TRY(check_name(bridge));
  if (::if_nametoindex(bridge.c_str()) == 0) {
    return fail(fmt::format("there is no bridge {} for {} (ip link add {} type bridge)", bridge, name, bridge));
  }
  const std::string master = master_of(name);
  if (master == bridge) {
    return {};
  }
  if (!master.empty()) {
    return fail(
        fmt::format("{} belongs to {} and can't be a port of {} too (ip link set {} nomaster)", name, master, bridge, name));
  }
  ifreq request = request_for(bridge);
  request.ifr_ifindex = static_cast<int>(::if_nametoindex(std::string(name).c_str()));
  const int error = control(socket, SIOCBRADDIF, &request);
  switch (error) {
    case 0:
      return {};
    case EPERM:
      return fail(
          fmt::format("{} can't be made a port of {} without CAP_NET_ADMIN; let root do it beforehand: "
                      "ip link set {} master {}",
                      name, bridge, name, bridge));
    case EOPNOTSUPP:
    case ENOTTY:
      return fail(
          fmt::format("{} is no bridge, so {} can't be a port of it (ip link add BRIDGE type bridge)", bridge, name));
    default:
      return fail_errno(error, fmt::format("can't make {} a port of the bridge {}", name, bridge));
  }
}

// --- Opening by name ---

Result<UniqueFd> open_tun() {
  UniqueFd fd(::open(kTunPath, O_RDWR | O_NONBLOCK | O_CLOEXEC));
  if (fd) {
    return fd;
  }
  switch (errno) {
    case ENOENT:
    case ENODEV:
    case ENXIO:
      return fail(
          fmt::format("this host has no {}: load the module tun (modprobe tun), or give the device to the container "
                      "(--device {})",
                      kTunPath, kTunPath));
    case EACCES:
    case EPERM:
      return fail(
          fmt::format("this user may not open {}: let root set its mode to 0666 or give it to a group of this user's, "
                      "or pass descriptors of the queues (fds=)",
                      kTunPath));
    default:
      return fail_errno(errno, fmt::format("can't open {}", kTunPath));
  }
}

struct NamedTap {
  std::string_view name;
  std::uint32_t pairs = 1;
  bool existed = false;
  std::string kind{};  // if it existed
};

int attach(int fd, std::string_view name, int flags) noexcept {
  ifreq request = request_for(name);
  request.ifr_flags = static_cast<short>(flags);
  return control(fd, TUNSETIFF, &request);
}

Error explain_attach(int error, const NamedTap& tap, std::uint32_t queue) {
  const std::string_view name = tap.name;
  if (tap.existed && tap.kind != "tap") {
    return {error, fmt::format("the interface {} is no tap{}; choose another name", name,
                               tap.kind == "tun" ? " but a tun, which has no Ethernet" : "")};
  }
  switch (error) {
    case EPERM:
      return {error, tap.existed ? fmt::format("{} belongs to another user or group; let root make it anew for this one: "
                                               "ip link del {} && {}",
                                               name, name, how_to_prepare(name, tap.pairs))
                                 : fmt::format("there is no interface {}, and without CAP_NET_ADMIN none can be made; let "
                                               "root do it: {}",
                                               name, how_to_prepare(name, tap.pairs))};
    case EBUSY:
      return {error, fmt::format("{} is in use by another process, and has one queue only", name)};
    case E2BIG:
      return {error,
              fmt::format("{} has no room for queue {}: the kernel gives 256 to all its users together; stop others or "
                          "use fewer pairs",
                          name, queue)};
    case EINVAL:
      return {error, fmt::format("the kernel doesn't take {} as a tap with vnet headers; is it one with other flags "
                                 "(ip -d link show {})?",
                                 name, name)};
    default:
      return fail_errno(error, fmt::format("can't attach to the interface {}", name)).error();
  }
}

// Makes or opens the interface and all queues. True in the end: it is a multi-queue one.
Result<bool> attach_queues(const NamedTap& tap, std::vector<UniqueFd>& queues) {
  bool multi_queue = true;
  for (std::uint32_t i = 0; i < tap.pairs; ++i) {
    RW_TRY_ASSIGN(UniqueFd fd, open_tun());
    int error = attach(fd.get(), tap.name, kTapFlags | (multi_queue ? IFF_MULTI_QUEUE : 0));
    // One without is refused like that.
    if (error == EINVAL && i == 0 && tap.kind == "tap") {
      multi_queue = false;
      error = attach(fd.get(), tap.name, kTapFlags);
      if (error == 0 && tap.pairs > 1) {
        return fail(
            fmt::format("{} was made with one queue, so it can't serve {} pairs; use one, or let root make it anew: "
                        "ip link del {} && {}",
                        tap.name, tap.pairs, tap.name, how_to_prepare(tap.name, tap.pairs)));
      }
    }
    if (error != 0) {
      return std::unexpected(explain_attach(error, tap, i));
    }
    queues.push_back(std::move(fd));
  }
  return multi_queue;
}

// --- Descriptors that we were given ---

Result<ifreq> check_given(int fd) {
  ifreq request{};
  if (::fcntl(fd, F_GETFD) < 0) {
    return fail(fmt::format("descriptor {} is not open; whoever starts us has to pass it on", fd));
  }
  const int error = control(fd, TUNGETIFF, &request);
  if (error == EBADFD) {
    return fail(fmt::format("descriptor {} is a {} that is attached to no interface (TUNSETIFF)", fd, kTunPath));
  }
  if (error != 0) {
    return fail(
        fmt::format("descriptor {} is no tap: what is wanted is an open {} with an interface (TUNSETIFF)", fd, kTunPath));
  }
  const auto flags = static_cast<unsigned short>(request.ifr_flags);
  if ((flags & IFF_TAP) == 0 || (flags & IFF_NO_PI) == 0 || (flags & IFF_VNET_HDR) == 0) {
    return fail(
        fmt::format("descriptor {} was opened with flags {:#x} for {}; IFF_TAP, IFF_NO_PI and IFF_VNET_HDR are needed", fd,
                    flags, request.ifr_name));
  }
  return request;
}

// True in the end: it is a multi-queue one.
Result<bool> adopt(const TapOptions& options, std::string& name, std::vector<UniqueFd>& queues) {
  bool multi_queue = true;
  std::vector<int> seen;
  for (const int fd : options.fds) {
    RW_TRY_ASSIGN(const ifreq request, check_given(fd));
    if (std::ranges::find(seen, fd) != seen.end()) {
      return fail(fmt::format("descriptor {} was given twice; each pair needs a queue of its own", fd));
    }
    seen.push_back(fd);
    if (!name.empty() && name != request.ifr_name) {
      return fail(fmt::format("the descriptors belong to different interfaces ({} and {}); those of one card need one", name,
                              request.ifr_name));
    }
    name = request.ifr_name;
    multi_queue = multi_queue && (static_cast<unsigned short>(request.ifr_flags) & IFF_MULTI_QUEUE) != 0;
  }
  for (const int fd : options.fds) {
    // A copy, so that theirs are untouched if anything fails.
    UniqueFd copy(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
    const int status = copy ? ::fcntl(copy.get(), F_GETFL) : -1;
    if (status < 0 || ::fcntl(copy.get(), F_SETFL, status | O_NONBLOCK) < 0) {
      return fail_errno(errno, fmt::format("can't take descriptor {} over", fd));
    }
    queues.push_back(std::move(copy));
  }
  return multi_queue;
}

// --- What all have in common ---

// Leaves the interface without offloads: nobody has said yet that he can take them.
void probe_offloads(int fd, TapDevice::Abilities& abilities) noexcept {
  struct Offload {
    std::uint64_t guest;
    std::uint64_t host;
  };
  // The kernel takes both kinds of USO or none.
  constexpr Offload kOffloads[] = {
      {spec::kNetGuestCsum, spec::kNetCsum},     {spec::kNetGuestTso4, spec::kNetHostTso4},
      {spec::kNetGuestTso6, spec::kNetHostTso6}, {spec::kNetGuestEcn, spec::kNetHostEcn},
      {spec::kNetGuestUfo, spec::kNetHostUfo},   {spec::kNetGuestUso4 | spec::kNetGuestUso6, spec::kNetHostUso},
  };
  // What it can cut for itself when it receives, it takes from us too.
  for (const Offload& offload : kOffloads) {
    const std::uint64_t with = abilities.guest_offloads | offload.guest;
    if (set_offloads(fd, to_tun_offloads(with)) == 0) {
      abilities.guest_offloads = with;
      abilities.host_offloads |= offload.host;
    }
  }
  static_cast<void>(set_offloads(fd, 0));
}

Result<> check_options(const TapOptions& options) {
  if (options.fds.empty()) {
    RW_TRY(check_name(options.name));
  } else if (!options.name.empty()) {
    return fail(fmt::format("a tap is given by its name ({}) or by descriptors of its queues, not by both", options.name));
  } else if (options.pairs != 1 && options.pairs != options.fds.size()) {
    return fail(fmt::format("{} pairs need as many descriptors, and {} were given", options.pairs, options.fds.size()));
  }
  const std::size_t pairs = options.fds.empty() ? options.pairs : options.fds.size();
  if (pairs == 0 || pairs > limits::kNetPairsMax) {
    return fail(fmt::format("a tap can't have {} queues here; 1 to {} are allowed", pairs, limits::kNetPairsMax));
  }
  if (options.mtu != 0 && (options.mtu < kTapMtuMin || options.mtu > kTapMtuMax)) {
    return fail(fmt::format("a tap can't have an MTU of {}; {} to {} are allowed", options.mtu, kTapMtuMin, kTapMtuMax));
  }
  return {};
}

}  // namespace

std::uint32_t to_tun_offloads(std::uint64_t guest_offloads) noexcept {
  const auto has = [guest_offloads](std::uint64_t offload) { return (guest_offloads & offload) == offload; };
  if (!has(spec::kNetGuestCsum)) {
    return 0;
  }
  const bool tso4 = has(spec::kNetGuestTso4);
  const bool tso6 = has(spec::kNetGuestTso6);
  return TUN_F_CSUM | (tso4 ? TUN_F_TSO4 : 0U) | (tso6 ? TUN_F_TSO6 : 0U) |
         (has(spec::kNetGuestEcn) && (tso4 || tso6) ? TUN_F_TSO_ECN : 0U) | (has(spec::kNetGuestUfo) ? TUN_F_UFO : 0U) |
         (has(spec::kNetGuestUso4 | spec::kNetGuestUso6) ? kTunUso4 | kTunUso6 : 0U);
}

Result<std::unique_ptr<TapDevice>> TapDevice::open(const TapOptions& options) {
  RW_TRY(check_options(options));
  RW_TRY_ASSIGN(const UniqueFd socket, open_socket());
  std::string name = options.name;
  std::vector<UniqueFd> queues;
  Abilities abilities;
  bool here = true;
  if (options.fds.empty()) {
    NamedTap tap{.name = name, .pairs = options.pairs, .existed = ::if_nametoindex(name.c_str()) != 0};
    tap.kind = tap.existed ? kind_of(socket.get(), name) : std::string{};
    abilities.made = !tap.existed;
    RW_TRY_ASSIGN(abilities.multi_queue, attach_queues(tap, queues));
  } else {
    RW_TRY_ASSIGN(abilities.multi_queue, adopt(options, name, queues));
    here = is_here(socket.get(), queues[0].get(), name);
  }
  const int fd = queues[0].get();
  if (const int error = control_value(fd, TUNSETVNETLE, 1); error != 0) {
    return fail_errno(error, fmt::format("the kernel doesn't give {} little-endian headers (TUNSETVNETLE)", name));
  }
  probe_offloads(fd, abilities);
  if (!here && (options.mtu != 0 || !options.bridge.empty())) {
    return fail(
        fmt::format("the interface {} lies in another network namespace, so neither its MTU nor its bridge can be set "
                    "from here; let whoever made it do that",
                    name));
  }
  auto device = std::make_unique<TapDevice>(name, std::move(queues), abilities);
  if (options.mtu != 0) {
    RW_TRY(device->set_mtu(options.mtu));
  }
  if (!options.bridge.empty()) {
    RW_TRY(join_bridge(socket.get(), name, options.bridge));
  }
  if (abilities.made) {
    RW_TRY(bring_up(socket.get(), name));
  }
  RW_TRY(device->set_guest(0, spec::kNetHeaderBytes));
  for (std::uint32_t i = 0; i < device->pairs(); ++i) {
    RW_TRY(device->set_attached(i, false));  // until a guest reads from it: what is in its queue reaches nobody
  }
  if (device->pairs() > 1) {
    if (const Result<> prepared = device->prepare_steering(); !prepared) {
      spdlog::info("{}: {}, so its guest is not offered RSS", name, prepared.error().message);
    }
  }
  for (const int given : options.fds) {
    ::close(given);
  }
  return device;
}

TapDevice::TapDevice(std::string name, std::vector<UniqueFd> queues, const Abilities& abilities)
    : name_(std::move(name)), queues_(std::move(queues)), abilities_(abilities), wanted_(queues_.size(), true) {
  for (std::uint32_t i = 0; i < pairs(); ++i) {
    attached_.push_back(i);  // of those that we were given perhaps in another order, until all are detached
  }
}

bool TapDevice::takes_all() const noexcept {
  int bytes = INT_MAX;
  return control(queues_[0].get(), TUNGETSNDBUF, &bytes) != 0 || bytes == INT_MAX;
}

Result<TapDevice::Link> TapDevice::link() const {
  RW_TRY_ASSIGN(const std::string name, current_name(fd(0), name_));
  RW_TRY_ASSIGN(const UniqueFd socket, open_socket());
  if (!is_here(socket.get(), fd(0), name)) {
    return fail(fmt::format("the interface {} lies in another network namespace", name));
  }
  ifreq flags = request_for(name);
  ifreq mtu = request_for(name);
  if (control(socket.get(), SIOCGIFFLAGS, &flags) != 0 || control(socket.get(), SIOCGIFMTU, &mtu) != 0) {
    return fail_errno(errno, fmt::format("can't read the state of the interface {}", name));
  }
  constexpr int kUp = IFF_UP | IFF_RUNNING;
  return Link{.up = (flags.ifr_flags & kUp) == kUp, .mtu = static_cast<std::uint32_t>(mtu.ifr_mtu)};
}

Result<> TapDevice::set_mtu(std::uint32_t mtu) {
  if (mtu < kTapMtuMin || mtu > kTapMtuMax) {
    return fail(fmt::format("a tap can't have an MTU of {}; {} to {} are allowed", mtu, kTapMtuMin, kTapMtuMax));
  }
  RW_TRY_ASSIGN(const Link now, link());
  if (now.mtu == mtu) {
    return {};
  }
  RW_TRY_ASSIGN(const std::string name, current_name(fd(0), name_));
  RW_TRY_ASSIGN(const UniqueFd socket, open_socket());
  ifreq request = request_for(name);
  request.ifr_mtu = static_cast<int>(mtu);
  const int error = control(socket.get(), SIOCSIFMTU, &request);
  if (error == EPERM) {
    return fail(
        fmt::format("the MTU of {} is {}, and can't be set to {} without CAP_NET_ADMIN; let root do it: "
                    "ip link set {} mtu {}",
                    name, now.mtu, mtu, name, mtu));
  }
  if (error != 0) {
    return fail_errno(error, fmt::format("can't set the MTU of {} to {}", name, mtu));
  }
  return {};
}

Result<> TapDevice::set_guest(std::uint64_t guest_offloads, std::size_t header_bytes) {
  const std::uint32_t offloads = to_tun_offloads(guest_offloads & abilities_.guest_offloads);
  const std::lock_guard lock(mutex_);
  // With the header first: the kernel reads or writes none of another size, whatever is queued.
  if (header_bytes != header_bytes_) {
    if (const int error = control_value(fd(0), TUNSETVNETHDRSZ, static_cast<int>(header_bytes)); error != 0) {
      return fail_errno(error, fmt::format("can't set the header of frames of {} to {} bytes", name_, header_bytes));
    }
    header_bytes_ = header_bytes;
  }
  if (offloads != tun_offloads_) {
    if (const int error = set_offloads(fd(0), offloads); error != 0) {
      return fail_errno(error, fmt::format("can't set the offloads of {} to {:#x}", name_, offloads));
    }
    tun_offloads_ = offloads;
  }
  return {};
}

// ---------------------------------------------------------------- queues

bool TapDevice::is_attached(std::uint32_t pair) const noexcept {
  return std::ranges::find(attached_, pair) != attached_.end();
}

// The kernel puts a queue behind the others, and the last one in the place of one that goes.
Result<> TapDevice::attach(std::uint32_t pair, bool attached) {
  ifreq request{};
  request.ifr_flags = static_cast<short>(attached ? IFF_ATTACH_QUEUE : IFF_DETACH_QUEUE);
  const int error = control(fd(pair), TUNSETQUEUE, &request);
  // EINVAL: it is so already.
  if (error != 0 && error != EINVAL) {
    return fail_errno(error, fmt::format("can't {} queue {} of {}", attached ? "attach" : "detach", pair, name_));
  }
  const auto place = std::ranges::find(attached_, pair);
  if (attached && place == attached_.end()) {
    attached_.push_back(pair);
  } else if (!attached && place != attached_.end()) {
    *place = attached_.back();
    attached_.pop_back();
  }
  return {};
}

Result<bool> TapDevice::set_attached(std::uint32_t pair, bool attached) {
  if (!abilities_.multi_queue) {
    return true;
  }
  const std::lock_guard lock(queues_mutex_);
  const bool before = is_attached(pair);
  wanted_[pair] = attached;
  if (!steered_) {
    RW_TRY(attach(pair, attached));
  }
  return before;
}

Result<> TapDevice::set_steering_program(int program) {
  if (const int error = control_value(fd(0), TUNSETSTEERINGEBPF, program); error != 0) {
    return fail_errno(error, fmt::format("can't change how {} chooses queues", name_));
  }
  return {};
}

Result<> TapDevice::prepare_steering() {
  RW_TRY(set_steering_program(-1));  // that of one who died with it
  RW_TRY_ASSIGN(steering_, TapSteering::load());
  return {};
}

// The kernel counts only queues that are attached, and gives a frame for another number to some queue. So all of them are
// while it goes by a table; what comes for one that nobody reads stays there, up to the interface's txqueuelen.
Result<> TapDevice::steer(const std::optional<NetSteering>& by) {
  RW_CHECK(steers());
  const std::lock_guard lock(queues_mutex_);
  if (!by) {
    RW_TRY(set_steering_program(-1));
    steered_ = false;
    for (std::uint32_t i = 0; i < pairs(); ++i) {
      if (!wanted_[i]) {
        RW_TRY(attach(i, false));
      }
    }
    return {};
  }
  for (std::uint32_t i = 0; i < pairs(); ++i) {
    if (!is_attached(i)) {
      RW_TRY(attach(i, true));
    }
  }
  std::vector<std::uint32_t> queues(pairs());
  for (std::uint32_t place = 0; place < pairs(); ++place) {
    queues[attached_[place]] = place;
  }
  RW_TRY(steering_->set(*by, queues));
  if (!steered_) {
    RW_TRY(set_steering_program(steering_->program()));
    steered_ = true;
  }
  return {};
}

}  // namespace ringway
